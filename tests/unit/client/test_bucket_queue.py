"""Numbers and order of one bucket's batches."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fluss.client.write.bucket_queue import NOT_NUMBERED, BucketQueue, earlier_than
from fluss.client.write.row_buffer import WireBatch
from fluss.formats.batches.log_batch import encode_header, parse_header

IN_FLIGHT_MAX = 5
NOW = 100.0
LATER = 200.0


def batch(number: int, deadline: float = 1e9) -> WireBatch:
    buffer = cast(Any, SimpleNamespace(deadline=deadline))
    payload = memoryview(bytes([number]))
    return WireBatch(buffer, 0, encode_header(payload, schema_id=1, record_count=1), payload, 1)


def wire(item: WireBatch) -> bytes:
    return bytes(item.header) + bytes(item.payload)


def queue_of(*batches: WireBatch) -> BucketQueue:
    queue = BucketQueue(cast(Any, None), 0)
    queue.waiting.extend(batches)
    return queue


def send_all(queue: BucketQueue, writer_id: int = 9, now: float = NOW) -> list[WireBatch]:
    sent = []
    while queue.next_to_send(now, IN_FLIGHT_MAX) is not None:
        sent.append(queue.sent(writer_id))
    return sent


def test_batches_get_consecutive_numbers_up_to_the_limit_under_way() -> None:
    queue = queue_of(*map(batch, range(7)))
    sent = send_all(queue)
    assert [(item.writer_id, item.sequence) for item in sent] == [(9, number) for number in range(5)]
    header = parse_header(wire(sent[3]))
    assert (header.writer_id, header.batch_sequence) == (9, 3)
    queue.stored(sent[0])
    assert [item.sequence for item in send_all(queue)] == [5]


def test_a_queue_goes_on_with_its_id_when_the_client_has_none_at_the_moment() -> None:
    queue = queue_of(*map(batch, range(3)))
    sent = [queue.sent(9), queue.sent(None), queue.sent(11)]
    assert [(item.writer_id, item.sequence) for item in sent] == [(9, 0), (9, 1), (9, 2)]


def test_without_any_id_batches_have_no_numbers() -> None:
    queue = queue_of(*map(batch, range(2)))
    assert [queue.sent(None).sequence for _ in range(2)] == [NOT_NUMBERED, NOT_NUMBERED]


def test_no_batch_runs_so_far_ahead_that_the_server_forgets_one_under_way() -> None:
    queue = queue_of(*map(batch, range(9)))
    sent = send_all(queue)
    for item in sent[1:]:
        queue.stored(item)  # the answer for number 0 is lost, those of 1 to 4 come
    assert queue.next_to_send(NOW, IN_FLIGHT_MAX) is None
    queue.stored(sent[0])
    assert [item.sequence for item in send_all(queue)] == [5, 6, 7, 8]


def test_without_idempotence_batches_have_no_number() -> None:
    queue = queue_of(batch(0))
    assert queue.next_to_send(NOW, 1) is not None
    sent = queue.sent(None)
    assert (sent.writer_id, sent.sequence, parse_header(wire(sent)).writer_id) == (-1, -1, -1)
    queue.again(sent, NOW, in_doubt=True)
    assert queue.next_to_send(LATER, 1) is sent


def test_after_a_failure_all_come_back_before_any_is_sent_again_and_numbers_stay() -> None:
    queue = queue_of(*map(batch, range(6)))
    first, *rest = send_all(queue)
    queue.again(first, NOW, in_doubt=True)
    assert queue.next_to_send(LATER, IN_FLIGHT_MAX) is None
    for item in reversed(rest):
        queue.out_of_order(item, NOW)
    assert not queue.spent
    assert queue.next_to_send(NOW, IN_FLIGHT_MAX) is None, "there is a pause first"
    assert send_all(queue, now=LATER) == [first], "one goes ahead"
    queue.stored(first)
    assert send_all(queue, now=LATER)[:4] == rest
    assert [item.sequence for item in (first, *rest)] == [0, 1, 2, 3, 4]


def test_a_sequence_lost_by_the_server_is_numbered_anew_under_another_id() -> None:
    queue = queue_of(*map(batch, range(3)))
    sent = send_all(queue)
    for item in sent:
        queue.out_of_order(item, NOW)
    assert queue.spent
    assert queue.next_to_send(LATER, IN_FLIGHT_MAX) is None
    assert queue.renumber() == []
    (ahead,) = send_all(queue, writer_id=10, now=LATER)
    queue.stored(ahead)
    send_all(queue, writer_id=10, now=LATER)
    assert [(item.writer_id, item.sequence) for item in sent] == [(10, 0), (10, 1), (10, 2)]


def test_what_may_have_been_stored_is_not_numbered_anew_nor_what_is_before_it() -> None:
    queue = queue_of(*map(batch, range(5)))
    sent = send_all(queue)
    for item in sent:
        queue.again(item, NOW, in_doubt=item is sent[2])
    assert send_all(queue, now=LATER) == sent[:1]
    queue.out_of_order(sent[0], LATER)
    assert queue.spent
    assert queue.renumber() == sent[:3]
    assert list(queue.waiting) == sent[3:]
    assert all(item.sequence == NOT_NUMBERED for item in queue.waiting)


def test_a_numbered_batch_given_up_spends_the_numbers() -> None:
    queue = queue_of(*map(batch, range(3)))
    first, second, third = send_all(queue)
    queue.failed(first)
    queue.out_of_order(second, NOW)
    queue.out_of_order(third, NOW)
    assert queue.spent
    assert queue.renumber() == []
    assert list(queue.waiting) == [second, third]
    assert send_all(queue, writer_id=10, now=LATER) == [second]
    assert (second.writer_id, second.sequence) == (10, 0)


def test_a_batch_that_was_never_sent_may_expire_without_harm() -> None:
    queue = queue_of(batch(0, deadline=NOW - 1), batch(1))
    (late,) = queue.expired(NOW)
    queue.failed(late)
    assert not queue.spent
    assert [item.sequence for item in send_all(queue)] == [0]


def test_sequences_wrap() -> None:
    queue = queue_of(*map(batch, range(3)))
    queue.writer_id, queue._next_sequence = 9, 2**31 - 2
    sent = send_all(queue)
    assert [item.sequence for item in sent] == [2**31 - 2, 2**31 - 1, 0]
    assert earlier_than(sent[1], sent[2])
    assert not earlier_than(sent[2], sent[1])


class Server:
    """A bucket's idempotence rules."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.known: dict[int, list[int]] = {}

    def append(self, data: bytearray) -> bool:
        header = parse_header(data)
        known = self.known.setdefault(header.writer_id, [])
        if header.batch_sequence in known[-5:]:
            return True
        if header.batch_sequence != (known[-1] + 1 if known else 0):
            return False
        known.append(header.batch_sequence)
        self.stored.append(data[-1])
        return True


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_rows_are_stored_once_and_in_order(seed: int) -> None:
    """Answers get lost, batches are refused, the server forgets writers: never twice, never out of order."""
    chance = random.Random(seed)
    server = Server()
    queue = queue_of(*map(batch, range(60)))
    acknowledged: list[int] = []
    lost: list[int] = []
    writer_id, now = 0, 0.0
    while queue.waiting or queue.in_flight:
        now += 10
        if queue.spent and not queue.in_flight:
            writer_id += 1
            lost.extend(item.payload[-1] for item in queue.renumber())
        while queue.next_to_send(now, IN_FLIGHT_MAX) is not None and chance.random() < 0.9:
            queue.sent(writer_id)
        refusing = False
        for item in list(queue.in_flight):
            fate = chance.random()
            # Number 0 of a forgotten writer is taken for a new one: no client can help a server that forgets that.
            unanswered = (*queue.in_flight, *queue.waiting)
            if fate < 0.02 and not any(other.in_doubt and other.sequence == 0 for other in unanswered):
                server.known.clear()
            refusing = refusing or fate < 0.1  # a server that lost its leadership refuses what follows, too
            if refusing:
                queue.again(item, now, in_doubt=False)
            elif not server.append(wire(item)):
                queue.out_of_order(item, now)
            elif fate < 0.35:
                queue.again(item, now, in_doubt=True)
            elif fate < 0.38:
                queue.failed(item)
                lost.append(item.payload[-1])
            else:
                queue.stored(item)
                acknowledged.append(item.payload[-1])
    assert server.stored == sorted(set(server.stored)), f"seed {seed}"
    assert set(acknowledged) <= set(server.stored)
    assert sorted(acknowledged + lost) == list(range(60))


def test_pauses_are_those_that_were_set() -> None:
    queue = BucketQueue(cast(Any, None), 0, pause_after=lambda failures: 10.0 * failures)
    queue.waiting.append(batch(0))
    now = NOW
    for pause_s in (10.0, 20.0):
        queue.again(queue.sent(1), now, in_doubt=False)
        assert queue.next_to_send(now + pause_s - 1, IN_FLIGHT_MAX) is None
        now += pause_s
        assert queue.next_to_send(now, IN_FLIGHT_MAX) is not None
