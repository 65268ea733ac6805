"""Each pipe keeps its promise on any route, and a search finds where it does not promise (SEMANTICS "O")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from tests.pipes.world import BAD, BAD_WITH_DEATHS, RESENDING, TIMEOUT, Faults, run, run_stream, worlds

RESEND = {"timeout": TIMEOUT}


def counter_example(world: Callable[[int], Faults], broken: Callable[[Faults], bool]) -> Faults:
    """A world in which something is broken that is not promised."""
    return next(faults for faults in map(world, range(200)) if broken(faults))


@pytest.mark.proves("O1")
@pytest.mark.parametrize("faults", worlds(BAD_WITH_DEATHS), ids=str)
def test_resend_loses_nothing_whatever_happens_to_route_and_receiver(faults: Faults) -> None:
    outcome = run("resend", faults, sender_options=RESEND, keeps_receiver=False, messages=120)
    assert outcome.finished
    assert outcome.complete
    assert outcome.first_deliveries == sorted(outcome.first_deliveries)


@pytest.mark.proves("O2")
@pytest.mark.parametrize("faults", worlds(BAD_WITH_DEATHS), ids=str)
def test_resend_multi_loses_nothing_whatever_happens_to_route_and_receiver(faults: Faults) -> None:
    outcome = run("resend-multi", faults, sender_options=RESEND, keeps_receiver=False)
    assert outcome.finished
    assert outcome.complete


@pytest.mark.proves("O1", "O2", "O4")
@pytest.mark.parametrize("name", ["resend", "resend-multi", "sequential"])
@pytest.mark.parametrize("faults", worlds(BAD, sender_dies=(0.0, 0.005, 0.02)), ids=str)
def test_a_resending_sender_that_goes_on_from_its_stored_state_loses_nothing(name: str, faults: Faults) -> None:
    outcome = run(name, faults, sender_options=RESEND, messages=120)
    assert outcome.finished
    assert outcome.complete


@pytest.mark.proves("O1", "O2")
@pytest.mark.parametrize("name", ["resend", "resend-multi"])
def test_resend_does_not_promise_to_survive_the_loss_of_the_sender(name: str) -> None:
    found = counter_example(
        partial(Faults, sender_dies=0.02),
        lambda faults: not run(name, faults, sender_options=RESEND, keeps_sender=False, messages=100).complete,
    )
    assert found.loss == 0


@pytest.mark.proves("O1", "O2")
@pytest.mark.parametrize("name", ["resend", "resend-multi"])
def test_resend_does_not_promise_to_deliver_once(name: str) -> None:
    found = counter_example(
        partial(Faults, loss=0.2),
        lambda faults: run(name, faults, sender_options=RESEND, messages=100).repeated,
    )
    assert found.repeat == 0


@pytest.mark.proves("O2")
def test_resend_multi_does_not_promise_an_order() -> None:
    counter_example(
        BAD,
        lambda faults: (
            (outcome := run("resend-multi", faults, sender_options=RESEND, messages=100)).first_deliveries
            != sorted(outcome.first_deliveries)
        ),
    )


@pytest.mark.proves("O3")
@pytest.mark.parametrize("faults", worlds(BAD_WITH_DEATHS), ids=str)
def test_stream_loses_nothing_whatever_happens_to_routes_receiver_and_engine(faults: Faults) -> None:
    outcome = run_stream(faults, storage_dies=0.005)
    assert outcome.finished
    assert outcome.complete


@pytest.mark.proves("O3")
@pytest.mark.parametrize("faults", worlds(BAD, sender_dies=(0.0, 0.005, 0.02)), ids=str)
def test_stream_needs_no_index_store_to_lose_nothing(faults: Faults) -> None:
    outcome = run_stream(faults, commits=False, messages=60)
    assert outcome.finished
    assert outcome.complete


@pytest.mark.proves("O3")
def test_stream_does_not_promise_to_survive_its_sender_before_the_storage_confirmed() -> None:
    counter_example(
        partial(Faults, loss=0.2, sender_dies=0.05),
        lambda faults: not run_stream(faults, keeps_sender=False).complete,
    )


@pytest.mark.proves("O3")
def test_stream_does_not_promise_to_survive_the_loss_of_the_storage() -> None:
    counter_example(
        partial(Faults, delay=3),
        lambda faults: not run_stream(faults, keeps_storage=False, storage_dies=0.05).complete,
    )


@pytest.mark.proves("O3")
def test_stream_does_not_promise_to_deliver_once() -> None:
    found = counter_example(partial(Faults, receiver_dies=0.1), lambda faults: run_stream(faults).repeated)
    assert found.loss == found.repeat == 0


@pytest.mark.proves("O4")
@pytest.mark.parametrize("faults", worlds(RESENDING), ids=str)
def test_sequential_is_in_continuous_order_over_a_route_that_resends(faults: Faults) -> None:
    outcome = run("sequential", faults, messages=120)
    assert outcome.finished
    assert outcome.complete
    assert outcome.first_deliveries == sorted(outcome.first_deliveries)
    in_order = run("sequential", replace(faults, fifo=True), messages=120)
    assert in_order.finished
    assert in_order.continuous


@pytest.mark.proves("O4")
@pytest.mark.parametrize("faults", worlds(BAD), ids=str)
def test_sequential_over_the_resend_pipe_is_in_continuous_order_on_any_route(faults: Faults) -> None:
    outcome = run("sequential", faults, sender_options=RESEND, messages=120)
    assert outcome.finished
    assert outcome.first_deliveries == list(range(1, 121))


@pytest.mark.proves("O4")
def test_sequential_does_not_promise_progress_on_a_route_that_loses() -> None:
    counter_example(
        partial(Faults, loss=0.05),
        lambda faults: not run("sequential", faults).finished,
    )


@pytest.mark.proves("O4")
def test_sequential_does_not_promise_that_a_late_copy_stays_away() -> None:
    counter_example(RESENDING, lambda faults: not run("sequential", faults, messages=100).continuous)


@pytest.mark.proves("O4")
def test_sequential_does_not_promise_to_survive_sender_or_receiver() -> None:
    counter_example(
        partial(Faults, receiver_dies=0.02),
        lambda faults: not run("sequential", faults).finished,
    )
    counter_example(
        partial(Faults, sender_dies=0.02),
        lambda faults: not run("sequential", faults, keeps_sender=False).complete,
    )


@pytest.mark.proves("O5")
@pytest.mark.parametrize("faults", worlds(BAD), ids=str)
def test_monotonic_never_repeats_or_reorders_on_any_route(faults: Faults) -> None:
    outcome = run("monotonic", faults)
    assert outcome.finished
    assert outcome.strictly_monotonic
    assert run("monotonic", replace(faults, loss=0.0, fifo=True)).absolute


@pytest.mark.proves("O5", "O5r")
@pytest.mark.parametrize("name", ["monotonic", "monotonic-relaxed"])
def test_monotonic_does_not_promise_to_deliver_everything(name: str) -> None:
    lost = counter_example(partial(Faults, loss=0.05), lambda faults: not run(name, faults).complete)
    assert lost.delay == 0
    counter_example(partial(Faults, delay=3), lambda faults: not run(name, faults).complete)


@pytest.mark.proves("O5", "O5r")
@pytest.mark.parametrize("name", ["monotonic", "monotonic-relaxed"])
def test_monotonic_does_not_promise_to_survive_a_receiver_that_forgets(name: str) -> None:
    world = partial(Faults, repeat=0.4, delay=20, receiver_dies=0.05)
    found = counter_example(world, lambda faults: not run(name, faults, keeps_receiver=False).monotonic)
    assert run(name, found).monotonic


@pytest.mark.proves("O5", "O5r")
@pytest.mark.parametrize("name", ["monotonic", "monotonic-relaxed"])
def test_monotonic_does_not_promise_to_survive_a_sender_that_forgets(name: str) -> None:
    """The route is perfect, yet messages are missing: their numbers had been used."""
    options = {"capacity": 5}
    world = partial(Faults, fifo=True, sender_dies=0.2)
    found = counter_example(
        world, lambda faults: not run(name, faults, sender_options=options, keeps_sender=False).complete
    )
    assert found.loss == 0
    quiet = run(name, replace(found, sender_dies=0.0), sender_options=options)
    assert quiet.absolute


@pytest.mark.proves("O5r")
@pytest.mark.parametrize("faults", worlds(BAD), ids=str)
def test_monotonic_relaxed_never_goes_back_on_any_route(faults: Faults) -> None:
    outcome = run("monotonic-relaxed", faults)
    assert outcome.finished
    assert outcome.monotonic
    assert run("monotonic", faults).delivered == outcome.first_deliveries


@pytest.mark.proves("O5r")
def test_monotonic_relaxed_lets_the_current_message_pass_again() -> None:
    found = counter_example(BAD, lambda faults: run("monotonic-relaxed", faults).repeated)
    assert not run("monotonic", found).repeated


@pytest.mark.proves("O6")
@pytest.mark.parametrize("faults", worlds(BAD), ids=str)
def test_continuous_is_in_absolute_order_on_any_route_under_a_resending_pipe(faults: Faults) -> None:
    outcome = run("continuous", faults, sender_options=RESEND)
    assert outcome.finished
    assert outcome.absolute


@pytest.mark.proves("O6", "O6r")
@pytest.mark.parametrize("name", ["continuous", "continuous-relaxed"])
@pytest.mark.parametrize("faults", worlds(RESENDING), ids=str)
def test_continuous_needs_no_resending_of_its_own_over_a_route_that_resends(name: str, faults: Faults) -> None:
    outcome = run(name, faults, sender_options={"timeout": None})
    assert outcome.finished
    assert outcome.complete
    assert outcome.continuous


@pytest.mark.proves("O6")
@pytest.mark.parametrize("faults", worlds(BAD_WITH_DEATHS, sender_dies=(0.0, 0.005, 0.02)), ids=str)
def test_continuous_survives_restarts_of_both_sides_when_their_state_does(faults: Faults) -> None:
    atomic = replace(faults, unstored=0.0)
    outcome = run("continuous", atomic, sender_options=RESEND)
    assert outcome.finished
    assert outcome.absolute


@pytest.mark.proves("O6", "O6r")
@pytest.mark.parametrize("name", ["continuous", "continuous-relaxed"])
@pytest.mark.parametrize("room", [0, 1, 4])
@pytest.mark.parametrize("faults", worlds(BAD), ids=str)
def test_a_full_queue_withholds_confirmation_and_never_blocks(name: str, room: int, faults: Faults) -> None:
    outcome = run(name, faults, sender_options=RESEND, receiver_options={"queue": room}, messages=100)
    assert outcome.finished
    assert outcome.complete
    assert outcome.continuous
    assert outcome.peak_queue <= room


@pytest.mark.proves("O6")
def test_a_full_queue_is_met_and_its_messages_come_again() -> None:
    world = partial(Faults, delay=20)
    found = counter_example(
        world,
        lambda faults: run("continuous", faults, sender_options=RESEND, receiver_options={"queue": 4}).withheld > 0,
    )
    assert run("continuous", found, sender_options=RESEND, receiver_options={"queue": 4}).absolute


@pytest.mark.proves("O6", "O6r")
@pytest.mark.parametrize("name", ["continuous", "continuous-relaxed"])
@pytest.mark.parametrize("faults", worlds(BAD), ids=str)
def test_a_dead_lettered_number_is_a_gap_that_nothing_waits_for(name: str, faults: Faults) -> None:
    outcome = run(name, faults, sender_options=RESEND, messages=150, abandon=lambda number: number % 7 in (0, 1))
    assert outcome.finished
    assert outcome.first_deliveries == [n for n in range(1, 151) if n % 7 not in (0, 1)]


@pytest.mark.proves("O6")
def test_continuous_does_not_promise_progress_without_resending() -> None:
    counter_example(
        partial(Faults, loss=0.05),
        lambda faults: not run("continuous", faults, sender_options={"timeout": None}).complete,
    )


@pytest.mark.proves("O6", "O6r")
@pytest.mark.parametrize("name", ["continuous", "continuous-relaxed"])
def test_continuous_does_not_promise_to_survive_sender_or_receiver(name: str) -> None:
    forgets = {"sender_options": RESEND, "messages": 100, "steps": 2000}
    counter_example(
        partial(Faults, receiver_dies=0.02),
        lambda faults: not run(name, faults, keeps_receiver=False, **forgets).complete,  # type: ignore[arg-type]
    )
    counter_example(
        partial(Faults, delay=3, sender_dies=0.1),
        lambda faults: not run(name, faults, keeps_sender=False, **forgets).complete,  # type: ignore[arg-type]
    )


@pytest.mark.proves("O6")
def test_continuous_does_not_promise_to_deliver_once_when_it_dies_between_delivery_and_storing() -> None:
    world = partial(Faults, receiver_dies=0.05, unstored=1.0)
    found = counter_example(world, lambda faults: run("continuous", faults, sender_options=RESEND).repeated)
    assert run("continuous", replace(found, unstored=0.0), sender_options=RESEND).absolute


@pytest.mark.proves("O6r")
@pytest.mark.parametrize("faults", worlds(BAD), ids=str)
def test_continuous_relaxed_is_in_continuous_order_and_loses_nothing_on_any_route(faults: Faults) -> None:
    outcome = run("continuous-relaxed", faults, sender_options=RESEND)
    assert outcome.finished
    assert outcome.complete
    assert outcome.continuous


@pytest.mark.proves("O6r")
def test_continuous_relaxed_lets_the_current_message_pass_again() -> None:
    found = counter_example(BAD, lambda faults: run("continuous-relaxed", faults, sender_options=RESEND).repeated)
    assert run("continuous", found, sender_options=RESEND).absolute
