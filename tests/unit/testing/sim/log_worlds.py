"""Log tables that keep every promise, and histories told call by call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluss.testing.sim.history import (
    Action,
    Append,
    Bucket,
    ClientCall,
    Close,
    Fate,
    History,
    Offsets,
    Poll,
    Record,
    Staged,
    Subscribe,
)
from fluss.testing.sim.logs import Content, Logs, Violation
from tests.unit.testing.sim.worlds import TABLE, World

BUCKET = Bucket(TABLE)
POLL_MAX = 5


class LogWorld(World):
    """A log table of some buckets, with readers, old rows removed, and batches of a query."""

    def __init__(self, seed: int, clients: int = 4, buckets: int = 2, *, doubts: float = 0.1) -> None:
        super().__init__(seed, clients, doubts=doubts)
        self.logs: dict[Bucket, list[Record]] = {Bucket(TABLE, number): [] for number in range(buckets)}
        self.starts = dict.fromkeys(self.logs, 0)
        self._positions: dict[tuple[str, Bucket], int] = {}
        self._ids = 0
        self._batch = 0
        self._batches: dict[int, tuple[int, ...]] = {}

    def draw(self, client: str) -> tuple[Action, Callable[[], Any]]:
        kind, bucket = self.chance.random(), self.chance.choice(list(self.logs))
        reader = (client, bucket)
        if kind < 0.4:
            ids = self._new_ids()
            return Append(TABLE, ids), lambda: self._store(bucket, ids)
        if kind < 0.45:
            ids = self._batch_ids()
            return Staged(TABLE, "q", self._batch, ids), lambda: self._commit(bucket, ids)
        if kind < 0.55:
            return Offsets(bucket), lambda: (self.starts[bucket], len(self.logs[bucket]))
        if reader not in self._positions:
            self._positions[reader] = 0
            return Subscribe(bucket, 0, 0), lambda: None
        return Poll(bucket), lambda: self._poll(reader)

    def remove(self, bucket: Bucket, count: int) -> None:
        """The oldest rows go."""
        self.starts[bucket] = min(self.starts[bucket] + count, len(self.logs[bucket]))

    def contents(self) -> dict[Bucket, Content]:
        return {
            bucket: Content(start := self.starts[bucket], len(records), records[start:])
            for bucket, records in self.logs.items()
        }

    def close(self) -> None:
        """One client ends, and with it whatever of it was on the way; batches that were decided come all the same."""
        client = self._idle.pop()
        self._late = [late for late in self._late if late.call.client != client or isinstance(late.call.action, Staged)]
        self.history.end(self.history.begin(client, Close()))

    def _new_ids(self) -> tuple[int, ...]:
        count = self.chance.randint(1, 3)
        self._ids += count
        return tuple(range(self._ids - count, self._ids))

    def _batch_ids(self) -> tuple[int, ...]:
        """Of the query's last batch, which is tried until it is done, or of the next one."""
        is_done = any(call.action.batch == self._batch and call.fate is Fate.DONE for call in self.history.of(Staged))
        self._batch += is_done
        if self._batch not in self._batches:
            self._batches[self._batch] = self._new_ids()
        return self._batches[self._batch]

    def _commit(self, bucket: Bucket, ids: tuple[int, ...]) -> None:
        if not any(record.id in ids for records in self.logs.values() for record in records):
            self._store(bucket, ids)

    def _store(self, bucket: Bucket, ids: Sequence[int]) -> None:
        records = self.logs[bucket]
        records += [Record(len(records) + at, number) for at, number in enumerate(ids)]

    def _poll(self, reader: tuple[str, Bucket]) -> tuple[Record, ...]:
        bucket = reader[1]
        position = max(self._positions[reader], self.starts[bucket])
        records = tuple(self.logs[bucket][position : position + POLL_MAX])
        self._positions[reader] = position + len(records)
        return records


class Told:
    """A history whose calls come one after the other, each a second long."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.history = History(lambda: self.time_s)

    def begin(self, client: str, action: Action) -> ClientCall:
        self.time_s += 0.5
        return self.history.begin(client, action)

    def did(self, client: str, action: Action, result: object = None, fate: Fate = Fate.DONE) -> ClientCall:
        call = self.begin(client, action)
        self.time_s += 0.5
        self.history.end(call, result, fate)
        return call

    def append(self, *ids: int, client: str = "w", fate: Fate = Fate.DONE) -> ClientCall:
        return self.did(client, Append(TABLE, ids), fate=fate)

    def poll(self, *records: Record, client: str = "r") -> ClientCall:
        return self.did(client, Poll(BUCKET), records)

    def found(
        self, content: Content | Mapping[Bucket, Content], kept_s: Mapping[str, float] | None = None
    ) -> list[Violation]:
        contents = {BUCKET: content} if isinstance(content, Content) else content
        return Logs(self.history, contents, kept_s or {}).violations()

    def kinds(self, content: Content | Mapping[Bucket, Content], **kept_s: float) -> list[str]:
        return [violation.kind for violation in self.found(content, kept_s)]


def stored(*ids: int, start: int = 0) -> Content:
    return Content(start, start + len(ids), records(*ids, start=start))


def records(*ids: int, start: int = 0) -> tuple[Record, ...]:
    return tuple(Record(offset, number) for offset, number in enumerate(ids, start))
