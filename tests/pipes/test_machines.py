"""The machines step by step: buffers, timeouts, epochs, stored states, and the table of pipes."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any, get_args

import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipes import AT_ONCE, PIPES, Confirmation, Message, Sender
from conduit_tasks.pipes.continuous import ContinuousReceiver, ContinuousSender
from conduit_tasks.pipes.monotonic import MonotonicReceiver, MonotonicSender
from conduit_tasks.pipes.resend import ResendReceiver, ResendSender
from conduit_tasks.pipes.resend_multi import ResendMultiSender
from conduit_tasks.pipes.sequential import SequentialSender
from conduit_tasks.pipes.stream import Fetch, IndexStore, StreamReceiver, StreamStorage
from tests.pipes.world import confirmation_of, stored


def numbers(messages: Any) -> list[int]:
    return [message.number for message in messages]


@pytest.mark.proves("O1")
def test_one_message_is_on_its_way_and_the_others_wait_for_its_confirmation() -> None:
    sender = ResendSender(timeout=10)
    assert [sender.offer(letter) for letter in "abc"] == [1, 2, 3]
    assert sender.poll(0) == [Message(1, "a")]
    assert sender.poll(5) == []
    sender.confirm(Confirmation(1))
    assert sender.poll(6) == [Message(2, "b")]
    assert sender.open == 2


@pytest.mark.proves("O1", "T8")
def test_without_a_confirmation_in_time_the_same_message_goes_again() -> None:
    sender = ResendSender(timeout=10)
    sender.offer("a")
    [first] = sender.poll(100)
    assert sender.wake_at == 110
    assert sender.poll(109.9) == []
    assert sender.poll(110) == [first]
    assert sender.wake_at == 120
    sender.confirm(confirmation_of(first))
    sender.confirm(confirmation_of(first))
    assert sender.wake_at is None
    assert sender.open == 0


@pytest.mark.proves("O2")
def test_each_of_several_messages_is_tracked_by_its_number() -> None:
    sender = ResendMultiSender(max_unconfirmed=3, timeout=10)
    for letter in "abcde":
        sender.offer(letter)
    assert numbers(sender.poll(0)) == [1, 2, 3]
    sender.confirm(Confirmation(2))
    assert numbers(sender.poll(4)) == [4]
    assert numbers(sender.poll(10)) == [1, 3]
    sender.confirm(Confirmation(1))
    assert numbers(sender.poll(14)) == [4, 5]


@pytest.mark.proves("C13")
@pytest.mark.parametrize("name", list(PIPES))
def test_a_full_sender_refuses_and_takes_again_when_there_is_room(name: str) -> None:
    sender = PIPES[name].sender(capacity=3)
    assert [sender.offer(n) for n in range(5)] == [1, 2, 3, None, None]
    for message in sender.poll(0):
        sender.confirm(confirmation_of(message))
    assert sender.offer("later") == 4


@pytest.mark.parametrize("name", list(PIPES))
def test_a_confirmation_of_another_epoch_changes_nothing(name: str) -> None:
    sender = PIPES[name].sender(epoch=2)
    sender.offer("a")
    assert [message.epoch for message in sender.poll(0)] == [2]
    before = sender.open
    sender.confirm(Confirmation(1, epoch=1))
    assert sender.open == before


@pytest.mark.parametrize("receiver", [MonotonicReceiver(epoch=2), ContinuousReceiver(epoch=2)])
def test_a_message_of_another_epoch_is_neither_delivered_nor_confirmed(receiver: Any) -> None:
    reaction = receiver.receive(Message(1, "a", epoch=1))
    assert (reaction.deliver, reaction.confirm) == ((), ())
    assert numbers(receiver.receive(Message(1, "a", epoch=2)).deliver) == [1]


@pytest.mark.parametrize("name", list(PIPES))
def test_a_restored_sender_numbers_on_and_sends_what_was_open_at_once(name: str) -> None:
    sender = PIPES[name].sender(epoch=7)
    for letter in "abc":
        sender.offer(letter)
    state = stored(sender.snapshot())
    sender.poll(0)
    again: Sender = PIPES[name].sender()
    again.restore(state)
    assert again.wake_at == AT_ONCE
    assert again.poll(0)[0] == Message(1, "a", epoch=7)
    assert again.offer("d") == 4


@pytest.mark.parametrize("name", [name for name in PIPES if name != "stream"])
def test_a_restored_receiver_reacts_as_the_one_before(name: str) -> None:
    receiver = PIPES[name].receiver()
    for number in (1, 2, 4, 6):
        receiver.receive(Message(number, f"m{number}"))
    again = PIPES[name].receiver()
    again.restore(stored(receiver.snapshot()))
    for message in (Message(2, "m2"), Message(3, "m3"), Message(6, "m6"), Message(5, gap=True), Message(7, "m7")):
        assert again.receive(message) == receiver.receive(message)
    assert again.snapshot() == receiver.snapshot()


@pytest.mark.proves("O5", "O5r")
def test_monotonic_passes_higher_numbers_only() -> None:
    strict, relaxed = MonotonicReceiver(), PIPES["monotonic-relaxed"].receiver()
    passed = [
        (bool(strict.receive(m).deliver), bool(relaxed.receive(m).deliver)) for m in map(Message, (2, 2, 1, 5, 3, 5))
    ]
    assert passed == [(True, True), (False, True), (False, False), (True, True), (False, False), (False, True)]


@pytest.mark.proves("O5", "O5r")
@pytest.mark.parametrize("seed", range(20))
def test_ascending_numbers_at_once_are_as_one_after_the_other(seed: int) -> None:
    chance = random.Random(seed)
    at_once, one_by_one = MonotonicReceiver(), MonotonicReceiver()
    for _ in range(20):
        start = chance.randint(1, 40)
        batch = sorted(chance.sample(range(start, start + 15), chance.randint(1, 15)))
        dropped = at_once.receive_all(batch)
        passed = [n for n in batch if one_by_one.receive(Message(n)).deliver]
        assert batch[dropped:] == passed
        assert at_once.snapshot() == one_by_one.snapshot()


@pytest.mark.proves("O6")
def test_continuous_delivers_the_queue_as_soon_as_it_is_next() -> None:
    receiver = ContinuousReceiver(queue=2)
    assert receiver.receive(Message(3)).confirm == (Confirmation(3),)
    assert receiver.receive(Message(2)).confirm == (Confirmation(2),)
    full = receiver.receive(Message(4))
    assert (full.deliver, full.confirm) == ((), ())
    assert receiver.receive(Message(3)).confirm == (Confirmation(3),)
    assert numbers(receiver.receive(Message(1)).deliver) == [1, 2, 3]
    assert receiver.queued == 0
    late = receiver.receive(Message(2))
    assert (late.deliver, late.confirm) == ((), (Confirmation(2),))
    assert numbers(receiver.receive(Message(4)).deliver) == [4]


@pytest.mark.proves("O6", "O6r")
def test_a_gap_is_passed_without_being_delivered_and_is_never_repeated() -> None:
    for name in ("continuous", "continuous-relaxed"):
        receiver = PIPES[name].receiver()
        assert receiver.receive(Message(2, "b")).deliver == ()
        reaction = receiver.receive(Message(1, gap=True))
        assert numbers(reaction.deliver) == [2]
        assert receiver.receive(Message(3, gap=True)).deliver == ()
        assert receiver.receive(Message(3, "c")).deliver == ()
        assert receiver.receive(Message(3, "c")).confirm == (Confirmation(3),)


@pytest.mark.proves("O6", "O6r")
@pytest.mark.parametrize("name", ["continuous", "continuous-relaxed"])
def test_a_message_may_announce_the_gaps_before_it(name: str) -> None:
    receiver = PIPES[name].receiver()
    assert receiver.receive(Message(7, "g", after=4)).deliver == ()
    assert numbers(receiver.receive(Message(3, "c", after=0)).deliver) == [3]
    again = PIPES[name].receiver()
    again.restore(stored(receiver.snapshot()))
    assert numbers(again.receive(Message(4, "d")).deliver) == [4, 7]
    assert again.receive(Message(5, "late")).deliver == ()
    assert again.receive(Message(2, "late", after=0)).deliver == ()


@pytest.mark.proves("O6")
def test_a_queued_message_that_is_announced_as_gap_after_all_is_dropped() -> None:
    receiver = ContinuousReceiver()
    receiver.receive(Message(3, "c"))
    assert numbers(receiver.receive(Message(5, "e", after=0)).deliver) == [5]
    assert receiver.queued == 0
    assert numbers(receiver.receive(Message(6, "f")).deliver) == [6]


@pytest.mark.proves("O6")
def test_an_abandoned_message_becomes_a_gap_that_is_sent_until_it_is_confirmed() -> None:
    sender = ContinuousSender(timeout=10, max_unconfirmed=2)
    for letter in "abc":
        sender.offer(letter)
    sender.poll(0)
    sender.abandon(1)
    sender.abandon(3)
    assert sender.poll(1) == [Message(1, gap=True)]
    sender.confirm(Confirmation(2))
    assert sender.poll(2) == [Message(3, gap=True)]
    assert sender.poll(11) == [Message(1, gap=True)]
    again = ContinuousSender(timeout=None)
    again.restore(stored(sender.snapshot()))
    assert again.poll(0) == [Message(1, gap=True), Message(3, gap=True)]
    assert again.poll(1) == []


@pytest.mark.parametrize("sender", [ResendSender(), ResendMultiSender(), SequentialSender(), MonotonicSender()])
def test_a_pipe_whose_receiver_does_not_wait_just_leaves_an_abandoned_message_out(sender: Sender) -> None:
    for letter in "abc":
        sender.offer(letter)
    sender.abandon(2)
    sent = []
    for now in range(5):
        for message in sender.poll(now):
            sent.append(message.payload)
            sender.confirm(confirmation_of(message))
    assert sent == ["a", "c"]
    assert sender.open == 0


@pytest.mark.parametrize(("receiver", "delivers"), [(MonotonicReceiver, [40]), (ContinuousReceiver, [40, 41])])
def test_a_receiver_may_begin_with_whichever_number_comes_first(receiver: Any, delivers: list[int]) -> None:
    machine = receiver(first=None)
    assert numbers(machine.receive(Message(40)).deliver) == delivers[:1]
    assert numbers(machine.receive(Message(42)).deliver) == ([42] if receiver is MonotonicReceiver else [])
    assert numbers(machine.receive(Message(41)).deliver) == ([] if receiver is MonotonicReceiver else [41, 42])


@pytest.mark.proves("O3")
def test_the_storage_numbers_keeps_reads_and_forgets() -> None:
    storage = StreamStorage()
    for number, letter in enumerate("abcd", start=1):
        assert storage.receive(Message(number, letter)).confirm == (Confirmation(number),)
    storage.receive(Message(2, "b"))
    assert storage.read(2, 2) == [Message(2, "b"), Message(3, "c")]
    storage.trim(4)
    again = StreamStorage()
    again.restore(stored(storage.snapshot()))
    assert again.read(1, 10) == [Message(4, "d"), Message(5, "b")]
    assert again.read(6, 10) == []
    assert again.end == 6
    again.trim(100)
    assert (again.read(1, 10), again.end) == ([], 6)


@pytest.mark.proves("O3")
def test_the_stream_receiver_asks_again_and_drops_what_it_has() -> None:
    receiver = StreamReceiver(timeout=10, limit=2)
    assert receiver.poll(0) == Fetch(1, 2)
    assert receiver.poll(9) is None
    assert receiver.poll(10) == Fetch(1, 2)
    reaction = receiver.fetched([Message(1), Message(2)])
    assert (numbers(reaction.deliver), reaction.confirm) == ([1, 2], (Confirmation(2),))
    assert receiver.fetched([Message(1), Message(2)]).deliver == ()
    assert numbers(receiver.fetched([Message(2), Message(3)]).deliver) == [3]
    assert receiver.fetched([Message(9)]).deliver == ()
    assert receiver.poll(11) == Fetch(4, 2)
    assert receiver.fetched([]).confirm == ()
    assert receiver.wake_at == 21
    again = StreamReceiver()
    again.restore(stored(receiver.snapshot()))
    assert again.poll(0) == Fetch(4, 256)


@pytest.mark.proves("O3")
def test_a_late_commit_does_not_move_the_index_back() -> None:
    store = IndexStore()
    store.commit(Confirmation(5))
    store.commit(Confirmation(3))
    again = IndexStore()
    again.restore(stored(store.snapshot()))
    assert again.index == 5


def test_resend_receivers_have_nothing_to_lose() -> None:
    receiver = ResendReceiver()
    assert receiver.snapshot() == {}
    receiver.restore({})
    assert receiver.receive(Message(9, "x", gap=True)).deliver == ()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ResendSender(timeout=0), "timeout: 0 seconds"),
        (lambda: ResendSender(capacity=0), "capacity: 0"),
        (lambda: MonotonicSender(capacity=0), "capacity: 0"),
        (lambda: ResendMultiSender(max_unconfirmed=0), "max-unconfirmed: 0"),
        (lambda: ContinuousReceiver(queue=-1), "queue: -1"),
        (lambda: StreamReceiver(timeout=-1), "timeout: -1"),
        (lambda: StreamReceiver(limit=0), "limit: 0"),
    ],
)
def test_an_impossible_option_is_refused(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_the_table_has_every_pipe_of_the_pipeline_file_under_its_number() -> None:
    from conduit_tasks.pipeline.model import DeliveryKeys

    assert set(PIPES) == set(get_args(DeliveryKeys.model_fields["pipe"].annotation))
    for name, pipe in PIPES.items():
        assert pipe.name == name
        assert all([pipe.delivery, pipe.tolerates, pipe.not_tolerated, pipe.needs])
        assert (pipe.duplicates == "none") is (name in ("monotonic", "continuous"))
        assert pipe.loss is name.startswith("monotonic")


def test_pipes_load_no_framework() -> None:
    heavy = ["airflow", "pyspark", "pyarrow", "redis", "pandas", "numpy", "aiohttp", "lark", "pydantic"]
    code = f"import conduit_tasks.pipes, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
