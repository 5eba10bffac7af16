"""The batches of one bucket in order, numbered under a writer id, so that a retried batch is stored once.

A batch gets its writer id and sequence when it is sent first and keeps them, so that the server knows it again. After a
failure nothing is sent until all batches under way have come back; then they are sent again in order. A server
remembers the last five sequences of a writer, so at most five batches may be under way.

When the server does not know the sequence any more, or a numbered batch failed for good, the numbers are spent: what
surely was not stored is numbered anew under a new writer id; what may have been stored, and what is before it, fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING

from fluss.client.cluster.metadata import Metadata
from fluss.client.cluster.retry import pause_s
from fluss.client.write.row_buffer import WireBatch
from fluss.doors import randomness
from fluss.model.errors import ConnectError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb

if TYPE_CHECKING:
    from fluss.client.net.connection import Connection


class WriterIds:
    """The current id. A bucket that gave up an id never gets the same one again."""

    def __init__(self, metadata: Metadata, timeout_s: float) -> None:
        self._metadata = metadata
        self._timeout_s = timeout_s
        self.current: int | None = None

    def give_up(self, writer_id: int | None) -> None:
        """A bucket can't use this id any more; others that do go on with it."""
        if writer_id == self.current:
            self.current = None

    async def fetch(self, path: TablePath) -> None:
        """Ask any tablet server for an id, on behalf of a writer of one table."""
        if not self._metadata.cluster.tablets:
            await self._metadata.refresh(path)
        nodes = list(self._metadata.cluster.tablets.values())
        if not nodes:
            raise ConnectError("The cluster has no tablet server at the moment.")
        open_nodes = [node for node in nodes if self._metadata.ready(node) is not None]
        connection = await self._metadata.tablet(randomness.chance.choice(open_nodes or nodes), self._timeout_s)
        request = pb.InitWriterRequest()
        request.table_path.add(database_name=path.database_name, table_name=path.table_name)
        self.current = (await connection.request(api_keys.INIT_WRITER, request, self._timeout_s)).writer_id


_SEQUENCE_MAX = 2**31 - 1
NOT_NUMBERED = -1


class BucketQueue:
    """All methods are called with the sender's lock held."""

    __slots__ = (
        "_halted",
        "_next_sequence",
        "_pause_s",
        "bucket",
        "connection",
        "failures",
        "in_flight",
        "info",
        "partition",
        "partition_id",
        "retry_at",
        "spent",
        "waiting",
        "writer_id",
    )

    def __init__(
        self,
        info: TableInfo,
        bucket: int,
        partition: str | None = None,
        pause_after: Callable[[int], float] = pause_s,
    ) -> None:
        """With `pause_after` the pause, in seconds, after so many failures in a row."""
        self._pause_s = pause_after
        self.info = info
        self.partition = partition
        self.partition_id: int | None = None
        self.bucket = bucket
        self.waiting: deque[WireBatch] = deque()
        self.in_flight: list[WireBatch] = []
        self.connection: Connection | None = None
        """Where the batches under way were sent: two connections would not keep their order."""
        self.retry_at = 0.0
        self.failures = 0
        self.writer_id: int | None = None
        self.spent = False
        """The numbers can't be used any more: `renumber` when nothing is under way."""
        self._next_sequence = 0
        self._halted = False

    def next_to_send(self, now: float, in_flight_max: int) -> WireBatch | None:
        """The batch to send now, if any."""
        # After a failure one batch goes ahead; the others follow when it is stored.
        limit = 1 if self.failures else in_flight_max
        if not self.waiting or self.spent or now < self.retry_at or len(self.in_flight) >= limit:
            return None
        if self._halted:
            if self.in_flight:
                return None
            self._halted = False
        return None if self._runs_ahead(self.waiting[0], in_flight_max) else self.waiting[0]

    def _runs_ahead(self, batch: WireBatch, in_flight_max: int) -> bool:
        """Whether sending it would make the server forget the oldest batch under way, which may have to be repeated.

        Counting batches under way is not enough: answers to later ones may come while that one's is lost.
        """
        if not self.in_flight or self.in_flight[0].sequence == NOT_NUMBERED:
            return False
        sequence = self._next_sequence if batch.sequence == NOT_NUMBERED else batch.sequence
        return (sequence - self.in_flight[0].sequence) & _SEQUENCE_MAX >= in_flight_max

    def belongs_to(self, partition_id: int) -> bool:
        """The partition has this id now; False while batches are under way to one that had the name before.

        What was sent to a partition that is dropped is gone with it: all waiting batches start anew in the new one.
        """
        if partition_id == self.partition_id:
            return True
        if self.in_flight:
            return False
        for batch in self.waiting:
            batch.writer_id = batch.sequence = NOT_NUMBERED
            batch.in_doubt = False
        self.writer_id = None
        self.spent = False
        self.partition_id = partition_id
        return True

    def sent(self, writer_id: int | None) -> WireBatch:
        """The first waiting batch goes out, numbered if it has no number and the queue has an id or `writer_id` is one.

        A client that just gave up its id for another bucket has none; the id of this queue is still good.
        """
        batch = self.waiting.popleft()
        batch.attempts += 1
        if self.writer_id is None and writer_id is not None:
            self.writer_id, self._next_sequence = writer_id, 0
        if batch.sequence == NOT_NUMBERED and self.writer_id is not None:
            batch.number(self.writer_id, self._next_sequence)
            self._next_sequence = 0 if self._next_sequence == _SEQUENCE_MAX else self._next_sequence + 1
        self.in_flight.append(batch)
        return batch

    def may_use(self, connection: Connection) -> bool:
        """Whether the next batch may be sent on this connection now."""
        return not self.in_flight or self.connection is connection

    def awaits(self, batch: WireBatch, connection: Connection) -> bool:
        """Whether what this connection says of a batch counts: it may have been sent again on another one since."""
        return self.connection is connection and batch in self.in_flight

    def stored(self, batch: WireBatch) -> None:
        """The server has the batch."""
        self.in_flight.remove(batch)
        self.failures = 0

    def again(self, batch: WireBatch, now: float, *, in_doubt: bool) -> None:
        """The batch is to be sent again, after a pause; `in_doubt` when the server may have stored it."""
        if not self._halted:
            self._pause(now)  # batches that fail together are one failure
        self._put_back(batch)
        batch.in_doubt = batch.in_doubt or in_doubt

    def out_of_order(self, batch: WireBatch, now: float) -> None:
        """The server expected another sequence; the batch was not stored by this attempt."""
        earlier = [other for other in (*self.in_flight, *self.waiting) if other.sequence != NOT_NUMBERED]
        is_first = all(other is batch or earlier_than(batch, other) for other in earlier)
        self._put_back(batch)
        if is_first:
            self.spent = True
            self._pause(now)

    def failed(self, batch: WireBatch) -> None:
        """The batch is given up; the server waits for its number in vain."""
        if batch in self.in_flight:
            self.in_flight.remove(batch)
        else:
            self.waiting.remove(batch)
        self._halted = True
        self.spent = self.spent or batch.sequence != NOT_NUMBERED

    def renumber(self) -> list[WireBatch]:
        """Start anew without numbers; returns the batches that can't be: they may have been stored."""
        assert not self.in_flight
        numbered = [batch for batch in self.waiting if batch.sequence != NOT_NUMBERED]
        doubtful = [index for index, batch in enumerate(numbered) if batch.in_doubt]
        lost = numbered[: doubtful[-1] + 1] if doubtful else []
        for batch in lost:
            self.waiting.remove(batch)
        for batch in numbered[len(lost) :]:
            batch.writer_id = batch.sequence = NOT_NUMBERED
        self.writer_id = None
        self.spent = False
        return lost

    def expired(self, now: float) -> list[WireBatch]:
        """The first waiting batches, as far as their time is over."""
        return list(takewhile(lambda batch: batch.buffer.deadline <= now, self.waiting))

    def _pause(self, now: float) -> None:
        self.failures += 1
        self.retry_at = now + self._pause_s(self.failures)

    def _put_back(self, batch: WireBatch) -> None:
        self.in_flight.remove(batch)
        self._halted = True
        position = 0
        for other in self.waiting:
            if other.sequence == NOT_NUMBERED or (batch.sequence != NOT_NUMBERED and earlier_than(batch, other)):
                break
            position += 1
        self.waiting.insert(position, batch)


def earlier_than(batch: WireBatch, other: WireBatch) -> bool:
    """Whether `batch` has the earlier sequence; sequences wrap around."""
    return (other.sequence - batch.sequence) & _SEQUENCE_MAX < _SEQUENCE_MAX // 2 and other is not batch
