"""Writers and readers on several tables, and the comparison of all they know with what the store has."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import fluss
from tests.kit.loads.oracle import Bucket, BucketContent, ReaderLog, WriterLog, check
from tests.kit.loads.readers import Follower
from tests.kit.loads.stored import read_stored
from tests.kit.loads.writers import POLL_INTERVAL_S, BatchWriter, PlainWriter, RowWriter, WriterThread, client_config
from tests.kit.rows import descriptor
from tests.kit.wire import Wire

DATABASE = "fluss"
PROGRESS_S_MAX = 30.0
END_S_MAX = 60.0


@dataclass(frozen=True)
class Plan:
    """How much of each; tables are used in turn."""

    tables: tuple[tuple[str, int], ...] = (("single", 1), ("spread", 3))
    row_writers: int = 1
    batch_writers: int = 2
    plain_writers: int = 1
    followers: bool = True
    rows_per_writer: int | None = None
    pause_s: float = 0.0
    writer_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Workload:
    """`prepare` makes the tables; as a context manager it writes and reads. `finish` ends it and checks everything."""

    address: str
    seed: int
    plan: Plan = field(default_factory=Plan)
    clients_address: str | None = None
    """Where clients go instead: a proxy."""

    def __post_init__(self) -> None:
        address = self.clients_address or self.address
        config = client_config(address, self.plan.writer_options)
        self.writers: list[WriterThread] = []
        self.followers: list[Follower] = []
        kinds: list[type[WriterThread]] = [
            *[RowWriter] * self.plan.row_writers,
            *[BatchWriter] * self.plan.batch_writers,
            *[PlainWriter] * self.plan.plain_writers,
        ]
        for number, kind in enumerate(kinds):
            name, buckets = self.plan.tables[number % len(self.plan.tables)]
            log = WriterLog(number, name)
            options = {"buckets": buckets} if kind is PlainWriter else {}
            path = fluss.TablePath(DATABASE, name)
            self.writers.append(kind(config, path, log, str(self.seed), self.plan.rows_per_writer, **options))
        for writer in self.writers:
            writer.pause_s = self.plan.pause_s
        for name, buckets in self.plan.tables if self.plan.followers else ():
            path = fluss.TablePath(DATABASE, name)
            self.followers.append(Follower(client_config(address, {}), path, buckets, ReaderLog(f"follower of {name}")))

    @property
    def _threads(self) -> list[WriterThread | Follower]:
        return [*self.writers, *self.followers]

    @property
    def tables(self) -> list[tuple[fluss.TablePath, int]]:
        return [(fluss.TablePath(DATABASE, name), buckets) for name, buckets in self.plan.tables]

    def prepare(self) -> None:
        with Wire(self.address) as wire:
            for path, buckets in self.tables:
                wire.create_table(path, descriptor(buckets))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for thread in self._threads:
            thread.stop()

    @property
    def acknowledged(self) -> int:
        return sum(writer.log.acknowledged for writer in self.writers)

    def raise_failures(self) -> None:
        for thread in self._threads:
            if thread.failure is not None:
                raise AssertionError(f"{thread.name} ended early") from thread.failure

    def await_progress(self, rows: int = 1, within_s: float = PROGRESS_S_MAX) -> None:
        """Wait until every writer has got `rows` more rows acknowledged."""
        goals = [(writer, writer.log.acknowledged + rows) for writer in self.writers]
        deadline = time.monotonic() + within_s
        for writer, goal in goals:
            while writer.log.acknowledged < goal and writer.is_alive():
                if time.monotonic() > deadline:
                    raise AssertionError(f"{writer.name} made no progress within {within_s:g} s")
                time.sleep(POLL_INTERVAL_S)
        self.raise_failures()

    def finish(self, *, end_s_max: float = END_S_MAX, ask: bool = True) -> dict[Bucket, BucketContent]:
        """End the writers (unless `ask` is False: they end by themselves), let readers see all there is, compare."""
        deadline = time.monotonic() + end_s_max
        for writer in self.writers:
            if ask:
                writer.stop()
        for writer in self.writers:
            writer.join(max(0.0, deadline - time.monotonic()))
            if writer.is_alive():
                raise AssertionError(f"{writer.name} did not end within {end_s_max:g} s")
        self.raise_failures()
        stored = read_stored(self.address, self.tables)
        self._await_followers(stored, max(deadline, time.monotonic() + PROGRESS_S_MAX))
        check([writer.log for writer in self.writers], [follower.log for follower in self.followers], stored)
        return stored

    def _await_followers(self, stored: dict[Bucket, BucketContent], deadline: float) -> None:
        """What is stored must be seen, too."""
        for follower in self.followers:
            wanted = {
                bucket: content.latest for bucket, content in stored.items() if bucket.table == follower.path.table_name
            }
            while any(follower.log.position(bucket) < latest for bucket, latest in wanted.items()):
                self.raise_failures()
                if time.monotonic() > deadline:
                    seen = {bucket: follower.log.position(bucket) for bucket in wanted}
                    raise AssertionError(f"{follower.name} saw {seen} of {wanted}")
                time.sleep(POLL_INTERVAL_S)
            follower.stop()
            follower.join(PROGRESS_S_MAX)
        self.raise_failures()
