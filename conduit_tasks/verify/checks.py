"""Account of every event at the end of a history (`account`), seen from outside: loss, order, repetitions, dead
letters, counters."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT
from conduit_tasks.verify.outside import Event, Outside
from conduit_tasks.verify.result import Found
from conduit_tasks.verify.scenario import LOST, Scenario

if TYPE_CHECKING:
    from conduit_tasks.verify.resends import Resent


def account(
    scenario: Scenario, outside: Outside, found: Found, snapshot: dict[str, Any], resent: Resent | None = None
) -> None:
    """Accounts for every event after everything was drained. `snapshot`: of `operate.status`; `resent`: what
    replays sent."""
    dead, still = outside.dead(), outside.open()
    resent = resent if scenario.resends else None
    if scenario.gone is not None:
        _vanished(scenario, found, scenario.gone, snapshot["totals"].get("read", 0))
    for destination in scenario.destinations:
        state = next(d for d in snapshot["destinations"] if d["id"] == destination)
        _destination(scenario, outside, found, destination, dead, state, resent)
        certain = {
            (source, event["n"])
            for source in scenario.sources
            for event in scenario.events[source]
            if scenario.at(destination, event) == "nacked"
        }
        _redrivable(found, destination, certain, still.get(destination, set()))
        if resent is not None:
            _all_sent(found, destination, still.get(destination, set()) - certain, state)
    _before_fan_out(scenario, found, dead.get(BEFORE_FAN_OUT, []), snapshot)
    early = {(e["s"], e["n"]) for of in scenario.events.values() for e in of if scenario.before_fan_out(e) == "nacked"}
    _redrivable(found, BEFORE_FAN_OUT, early, still.get(BEFORE_FAN_OUT, set()))
    if resent is not None:
        _all_sent(found, BEFORE_FAN_OUT, still.get(BEFORE_FAN_OUT, set()) - early, {})
    for where in ("", *scenario.destinations):
        if count := outside.unstored(where):
            found.broken(f"{count} dead letters of {where or BEFORE_FAN_OUT} are in the index only")
    for source in snapshot["sources"]:
        if source["id"] == LOST and scenario.gone is not None:
            continue
        if scenario.queued:
            if waiting := outside.waiting(source["id"]):
                found.unacked += waiting
                found.broken(f"{waiting} messages of {source['id']} are not deleted")
            continue
        end = outside.offsets(source["id"])[-1]
        part = f"data/{source['id']}.jsonl"
        acked = source["acked"].get(part, {"offset": 0})["offset"]
        if acked != end:
            missing = sum(1 for at in outside.offsets(source["id"])[1:] if at > acked)
            found.unacked += missing
            found.broken(f"{missing} events of {source['id']} are not acked: {acked} of {end} bytes")
    if snapshot["unsealed"] is not None:
        found.broken(f"micro-batch {snapshot['unsealed']['number']} was left unsealed")


def _redrivable(found: Found, where: str, nacked: set[Event], still: set[Event]) -> None:
    """Reports dead letters that the broker does not know: they are never sent again."""
    if closed := nacked - still:
        found.loss += len(closed)
        found.broken(f"loss at {where}: its dead letters of {_some(closed)} are not in the broker's index")


def _all_sent(found: Found, where: str, still: set[Event], state: dict[str, Any]) -> None:
    """Reports dead letters and parked keys that are left after a redrive that sent everything."""
    if still:
        found.broken(f"{where} has dead letters of what was sent again: {_some(still)}")
    if count := state.get("parked_keys"):
        found.broken(f"{where} has {count} parked keys, and nothing holds them back")


def _vanished(scenario: Scenario, found: Found, gone: tuple[int, int], read: int) -> None:
    """Checks a file that is gone: only the events that had been read are expected, or all that were planned if a
    process had it open then; none of them is lost or made up."""
    of = read - sum(len(events) for source, events in scenario.events.items() if source != LOST)
    whole = of == scenario.planned
    if not (whole or gone[0] <= of <= gone[1]):
        found.broken(f"{of} events of a file that is gone were read; it had been {gone[0]} to {gone[1]}")
    if scenario.unread and not whole and scenario.vanishing != "skip":
        found.broken("what was planned of a file that is gone was passed over, and nobody was asked")
    scenario.events[LOST] = scenario.events[LOST][: max(of, 0)]


def _destination(  # noqa: PLR0917 - what is known of one destination
    scenario: Scenario,
    outside: Outside,
    found: Found,
    destination: str,
    letters: dict[str, list[tuple[Event, str]]],
    state: dict[str, Any],
    resent: Resent | None,
) -> None:
    try:
        arrived = outside.arrived(destination)
    except ValueError as error:
        found.broken(str(error))
        return
    dead = letters.get(destination, [])
    mayfly = {event for event, kind in dead if destination == "web" and kind in ("http 503", "unavailable", "timeout")}
    if resent is not None:
        # What could be delivered has been redriven.
        dead = [(event, kind) for event, kind in dead if event not in mayfly and not scenario.fixable(event)]
        mayfly = set()
    expected, nacked, fates = _expected(scenario, destination, mayfly)
    has = Counter(arrived)
    lost = expected - has
    again = {event for event, _ in (*letters.get(destination, ()), *letters.get(BEFORE_FAN_OUT, ()))}
    if resent is not None:
        _resent(found, destination, resent, has + lost, expected, again)
        expected += resent.most(destination)
    # Some of a record's copies may have arrived before another's failure made all of them a nack.
    more = Counter({e: n for e, n in (has - expected).items() if e not in mayfly})
    if lost:
        found.loss += lost.total()
        found.broken(f"loss at {destination}: {_some(lost)}")
    if gone := nacked - {event for event, _ in dead}:
        found.loss += len(gone)
        found.broken(f"loss at {destination}: no dead letter of {_some(gone)}")
    if odd := {event for event, _ in dead} - nacked:
        found.broken(f"{destination} has dead letters of events that nothing failed: {_some(odd)}")
    found.duplicates += more.total()
    # What was written at one place and not confirmed stays there if the file names another one by then.
    moved = scenario.changed and destination == "few"
    for place in outside.places(destination) if moved and not scenario.forgetful else ():
        if twice := Counter(place) - expected:
            found.broken(f"duplicates at one place of {destination}: {_some(twice)}")
    if more and destination != "web" and not moved and not (scenario.forgetful and destination != "table"):
        found.broken(f"duplicates at {destination}: {_some(more)}")
    if destination == "web" and more.total() > found.bound:
        found.broken(f"duplicates at web: {more.total()}, its interruptions explain {found.bound}")
    if not moved and (resent is None or destination not in resent.apart):
        # What is sent again comes late, unless the rest of its key waits.
        late = {event for event, _ in letters.get(BEFORE_FAN_OUT, ())} if scenario.parks else again
        back = _inversions(scenario, destination, arrived, late if scenario.resends else set())
        found.inversions += len(back)
        if back:
            found.broken(f"order at {destination}: {_some(back)}")
    _counters(scenario, found, destination, fates, state)


def _expected(
    scenario: Scenario, destination: str, mayfly: set[Event]
) -> tuple[Counter[Event], set[Event], Counter[str]]:
    """Returns how often each event is to be there, the events that are dead letters, and the number of each outcome.
    `mayfly`: events that a busy receiver made dead letters."""
    expected, nacked, fates = Counter[Event](), set[Event](), Counter[str]()
    for source in scenario.sources:
        for event in scenario.events[source]:
            fate = scenario.at(destination, event)
            key = (source, event["n"])
            if fate == "delivered" and key not in mayfly:
                expected[key] = scenario.copies(event)
            elif fate == "nacked" or key in mayfly:
                fate = "nacked"
                nacked.add(key)
            if fate:
                fates[fate] += 1
    return expected, nacked, fates


def _resent(  # noqa: PLR0917 - what is known of one destination
    found: Found, destination: str, resent: Resent, has: Counter[Event], expected: Counter[Event], again: set[Event]
) -> None:
    """Checks that what replays called sent has come once more; a table has it once. `again`: events with dead letters,
    which are sent once, by a redrive or a replay."""
    due = expected + Counter({e: n for e, n in resent.least(destination).items() if e not in again})
    if destination != "table" and (left := due - has):
        found.broken(f"{destination} has not got all that replays called sent: {_some(left)}")


def _counters(scenario: Scenario, found: Found, destination: str, fates: Counter[str], state: dict[str, Any]) -> None:
    """Checks invariant 10: the broker's counters match what happened."""
    if scenario.resends:
        settled = sum(state[name] for name in ("delivered", "nacked", "filtered", "parked"))
        if state["matched"] != settled:
            found.broken(
                f"Invariant 10: {destination} counted {state['matched']} matched, of which {settled} have ended"
            )
        fates = Counter()
    for name, count in (
        ("matched", fates.total()),
        ("delivered", fates["delivered"]),
        ("nacked", fates["nacked"]),
        ("filtered", fates["filtered"]),
    ):
        if fates and state[name] != count:
            found.broken(f"Invariant 10: {destination} counted {state[name]} {name}, there are {count}")
    if state["behind"]:
        found.broken(f"{destination} is {state['behind']} micro-batches behind")


def _before_fan_out(scenario: Scenario, found: Found, dead: list[tuple[Event, str]], snapshot: dict[str, Any]) -> None:
    events = [event for source in scenario.sources for event in scenario.events[source]]
    nacked = {(e["s"], e["n"]) for e in events if scenario.before_fan_out(e) == "nacked"}
    has = {event for event, _ in dead}
    if gone := nacked - has:
        found.loss += len(gone)
        found.broken(f"loss: no dead letter of {_some(gone)}, which failed before the fan-out")
    if odd := {event for event in has - nacked if not scenario.fixable(event)}:
        found.broken(f"dead letters before the fan-out of events that nothing failed: {_some(odd)}")
    read = snapshot["totals"].get("read", 0)
    if read != len(events):
        found.broken(f"Invariant 10: {read} records were read, there are {len(events)}")


def _inversions(scenario: Scenario, destination: str, arrived: list[Event], late: set[Event]) -> list[str]:
    """Returns first arrivals that come behind a later event of their source, or of their key with order `key`, but
    those of `late`."""
    parks = scenario.parks and destination == "file"
    order = scenario.order if destination == "web" or parks else "partition"
    if destination == "few" and scenario.bulk:
        order = scenario.bulk
    if order == "none":
        return []
    seen = set(late)
    last: dict[Any, int] = {}
    out = []
    for source, n in arrived:
        if (source, n) in seen:
            continue
        seen.add((source, n))
        if scenario.queued:
            continue
        line = (source, scenario.events[source][n]["k"]) if order == "key" else source
        if n < last.get(line, -1):
            out.append(f"{n} of {source} behind {last[line]}")
        last[line] = max(n, last.get(line, -1))
    return out


def _some(items: Any) -> str:
    listed = sorted(map(str, items))
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
