"""A world for pipes: routes that lose, repeat, delay and shuffle, processes that die, and a clock of ticks."""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any

from conduit_tasks.pipes import PIPES, Confirmation, Message, Receiver, Sender
from conduit_tasks.pipes.stream import IndexStore, StreamReceiver, StreamSender, StreamStorage

TIMEOUT = 30.0
MESSAGES = 300


@dataclass(frozen=True)
class Faults:
    """What a route does to each thing on it, and how often processes die, as probabilities; `delay` in ticks.

    `receiver_dies` per message that arrives, `sender_dies` per step. `unstored`: of the receiver's deaths, those
    between delivering and storing its state; the others come before it looked at the message.
    """

    seed: int = 0
    loss: float = 0.0
    repeat: float = 0.0
    delay: int = 0
    receiver_dies: float = 0.0
    unstored: float = 0.0
    sender_dies: float = 0.0
    fifo: bool = False


def _chosen(seed: int, **ranges: tuple[Any, ...]) -> Faults:
    chance = random.Random(seed)
    return Faults(seed, **{name: chance.choice(values) for name, values in ranges.items()})


SOME, FEW, DELAYS = (0.0, 0.05, 0.2, 0.4), (0.0, 0.005, 0.02), (0, 3, 20)

BAD = partial(_chosen, loss=SOME, repeat=SOME, delay=DELAYS)
"""Routes that lose, repeat, delay and shuffle, by seed."""
RESENDING = partial(_chosen, repeat=SOME, delay=DELAYS)
"""Routes that deliver at least once: they repeat, delay and shuffle."""
BAD_WITH_DEATHS = partial(BAD, receiver_dies=FEW, unstored=SOME)


def worlds(of: Callable[..., Faults], count: int = 20, **more: tuple[Any, ...]) -> list[Faults]:
    """`count` of them, the same at every run; `more`: further faults to choose from."""
    return [of(seed, **more) for seed in range(count)]


class Route:
    """Carries things one way."""

    def __init__(self, faults: Faults, chance: random.Random) -> None:
        self.faults, self.chance = faults, chance
        self.flying: list[tuple[int, int, Any]] = []
        self.count = self.last = 0

    def put(self, now: int, thing: Any) -> None:
        copies = 1 + (self.chance.random() < self.faults.repeat)
        for _ in range(copies):
            if self.chance.random() < self.faults.loss:
                continue
            self.count += 1
            arrives = now + 1 + self.chance.randint(0, self.faults.delay)
            if self.faults.fifo:
                arrives = self.last = max(arrives, self.last)
            # At the same tick things overtake each other too, unless the route keeps the order.
            rank = self.count if self.faults.fifo else self.chance.randrange(1 << 30)
            heapq.heappush(self.flying, (arrives, rank, thing))

    def due(self, now: int) -> list[Any]:
        things = []
        while self.flying and self.flying[0][0] <= now:
            things.append(heapq.heappop(self.flying)[2])
        return things


@dataclass
class Outcome:
    """`delivered`: payloads 1, 2, … in the order of delivery; `sent`: how many were offered."""

    delivered: list[int] = field(default_factory=list)
    sent: int = MESSAGES
    finished: bool = False
    withheld: int = 0
    peak_queue: int = 0

    @property
    def complete(self) -> bool:
        return set(self.delivered) == set(range(1, self.sent + 1))

    @property
    def repeated(self) -> bool:
        return len(self.delivered) != len(set(self.delivered))

    @property
    def first_deliveries(self) -> list[int]:
        return list(dict.fromkeys(self.delivered))

    @property
    def absolute(self) -> bool:
        return self.delivered == list(range(1, self.sent + 1))

    @property
    def continuous(self) -> bool:
        """Each delivery is the next of the one before, or the same again, from 1 on."""
        pairs = zip([0, *self.delivered], self.delivered)
        return all(now in (before, before + 1) for before, now in pairs) and 0 not in self.delivered

    @property
    def strictly_monotonic(self) -> bool:
        return all(before < now for before, now in zip(self.delivered, self.delivered[1:]))

    @property
    def monotonic(self) -> bool:
        return all(before <= now for before, now in zip(self.delivered, self.delivered[1:]))


def stored(state: Any) -> Any:
    """A state as it comes back from wherever it was stored."""
    return json.loads(json.dumps(state))


def run(
    name: str,
    faults: Faults,
    *,
    sender_options: dict[str, Any] | None = None,
    receiver_options: dict[str, Any] | None = None,
    keeps_receiver: bool = True,
    keeps_sender: bool = True,
    messages: int = MESSAGES,
    abandon: Callable[[int], bool] = lambda number: False,
    steps: int = 20_000,
) -> Outcome:
    """Pushes messages through a pipe until it is at rest. `keeps_…`: whether that side's state outlives its deaths."""
    chance = random.Random(faults.seed)
    there, back = Route(faults, chance), Route(faults, chance)
    pipe = PIPES[name]

    def new_sender() -> Sender:
        return pipe.sender(**(sender_options or {}))

    def new_receiver() -> Receiver:
        return pipe.receiver(**(receiver_options or {}))  # type: ignore[no-any-return]

    sender, receiver, outcome, offered = new_sender(), new_receiver(), Outcome(sent=messages), 0
    receiver_state = receiver.snapshot()
    now = 0
    for _ in range(steps):
        while offered < messages and sender.offer(offered + 1) is not None:
            offered += 1
            if abandon(offered):
                sender.abandon(offered)
        sender_dies = chance.random() < faults.sender_dies
        sender_state = stored(sender.snapshot()) if sender_dies else None
        for message in sender.poll(now):
            there.put(now, message)
        for message in there.due(now):
            dies = chance.random() < faults.receiver_dies
            unstored = dies and chance.random() < faults.unstored
            if not dies or unstored:
                reaction = receiver.receive(message)
                outcome.delivered += [delivered.payload for delivered in reaction.deliver]
                outcome.withheld += not reaction.confirm
                outcome.peak_queue = max(outcome.peak_queue, getattr(receiver, "queued", 0))
            if dies:
                receiver = new_receiver()
                if keeps_receiver:
                    receiver.restore(stored(receiver_state))
            else:
                if faults.receiver_dies and keeps_receiver:
                    receiver_state = receiver.snapshot()
                for confirmation in reaction.confirm:
                    back.put(now, confirmation)
        for confirmation in back.due(now):
            sender.confirm(confirmation)
        if sender_dies:
            sender = new_sender()
            if keeps_sender:
                sender.restore(sender_state)
        if offered == messages and not there.flying and not back.flying and sender.wake_at is None:
            break
        now = next_event(now, sender.wake_at, there, back)
    outcome.finished = offered == messages and sender.open == 0
    return outcome


def next_event(now: int, wake_at: float | None, *routes: Route) -> int:
    """The next tick at which something happens; those without are skipped."""
    times = [wake_at if wake_at is not None else now + 1, *(route.flying[0][0] for route in routes if route.flying)]
    return max(now + 1, ceil(max(min(times), now)))


def run_stream(
    faults: Faults,
    *,
    keeps_sender: bool = True,
    keeps_storage: bool = True,
    storage_dies: float = 0.0,
    commits: bool = True,
    messages: int = MESSAGES,
    steps: int = 20_000,
) -> Outcome:
    """Pushes messages through the four machines of a stream."""
    chance = random.Random(faults.seed)
    store, confirm, ask, answer, commit = (Route(faults, chance) for _ in range(5))
    sender, storage, index = StreamSender(timeout=TIMEOUT), StreamStorage(), IndexStore()
    receiver = StreamReceiver(timeout=TIMEOUT, limit=20)
    outcome, offered = Outcome(sent=messages), 0
    now = 0
    for _ in range(steps):
        while offered < messages and sender.offer(offered + 1) is not None:
            offered += 1
        sender_dies = chance.random() < faults.sender_dies
        sender_state = stored(sender.snapshot()) if sender_dies else None
        for message in sender.poll(now):
            store.put(now, message)
        for message in store.due(now):
            reaction = storage.receive(message)
            for confirmation in reaction.confirm:
                confirm.put(now, confirmation)
        dies = chance.random() < storage_dies
        storage_state = stored(storage.snapshot()) if dies else None
        for confirmation in confirm.due(now):
            sender.confirm(confirmation)
        question = receiver.poll(now)
        if question is not None:
            ask.put(now, question)
        for question in ask.due(now):
            answer.put(now, storage.read(question.index, question.limit))
        for messages_found in answer.due(now):
            reaction = receiver.fetched(messages_found)
            outcome.delivered += [message.payload for message in reaction.deliver]
            if chance.random() < faults.receiver_dies:
                # What it delivered stays delivered; whether it was committed does not matter to the promise.
                receiver = StreamReceiver(first=index.index + 1, timeout=TIMEOUT, limit=20)
            elif commits:
                for confirmation in reaction.confirm:
                    commit.put(now, confirmation)
        for confirmation in commit.due(now):
            index.commit(confirmation)
        if sender_dies:
            sender = StreamSender(timeout=TIMEOUT)
            if keeps_sender:
                sender.restore(sender_state)
        if dies:
            storage = StreamStorage()
            if keeps_storage:
                storage.restore(storage_state)
        all_stored = offered == messages and sender.open == 0 and not store.flying
        if all_stored and receiver.snapshot()["next"] >= storage.end:
            outcome.finished = True
            break
        wakes = [at for at in (sender.wake_at, receiver.wake_at) if at is not None]
        now = next_event(now, min(wakes), store, confirm, ask, answer, commit)
    return outcome


def confirmation_of(message: Message) -> Confirmation:
    return Confirmation(message.number, message.epoch)
