"""What must be in the store, and what may be: known from outside, by what was acknowledged, refused, and seen.

Writers note the fate of each row, readers note what they saw at which offset. `violations` compares both with what the
store has in the end. It reads no clock and no disk, so it can be tested by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from tests.kit.rows import Row, StoredBatch

_SHOWN_MAX = 20


class Fate(IntEnum):
    """What a writer knows of a row. One in flight when its server died is stored or not, but never twice."""

    UNKNOWN = 0
    ACKNOWLEDGED = 1
    REFUSED = 2


class Bucket(NamedTuple):
    table: str
    number: int


class BucketContent(NamedTuple):
    """What a bucket has: its batches in the order they were read, and the offset it gives out next."""

    batches: Sequence[StoredBatch]
    latest: int


class WriterLog:
    """The rows of one writer, numbered from 0. Only its own thread changes it."""

    def __init__(self, number: int, table: str) -> None:
        self.number = number
        self.table = table
        self._fates = bytearray()

    @property
    def count(self) -> int:
        """How many rows were begun."""
        return len(self._fates)

    @property
    def acknowledged(self) -> int:
        """How many rows the server has acknowledged."""
        return self._fates.count(Fate.ACKNOWLEDGED)

    def begin(self, count: int) -> list[Row]:
        """The next rows to send; until more is known their fate is unknown."""
        first = len(self._fates)
        self._fates.extend(bytes([Fate.UNKNOWN]) * count)
        return [Row(self.number, sequence) for sequence in range(first, first + count)]

    def settle(self, rows: Iterable[Row], fate: Fate) -> None:
        for row in rows:
            self._fates[row.sequence] = fate

    def fate(self, sequence: int) -> Fate:
        return Fate(self._fates[sequence])

    def fates(self) -> bytes:
        """All fates by row number, as they are now."""
        return bytes(self._fates)


class ReaderLog:
    """What one reader saw of each bucket, from offset 0 on. Only its own thread changes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[Bucket, list[Row]] = {}
        self.problems: list[str] = []

    def see(self, bucket: Bucket, base_offset: int, rows: Sequence[Row]) -> None:
        """Note a batch; one that does not follow the last is a problem."""
        seen = self.rows.setdefault(bucket, [])
        if base_offset != len(seen):
            self.problems.append(f"{self.name} got offset {base_offset} of {bucket}, {len(seen)} is next")
        seen.extend(rows)

    def position(self, bucket: Bucket) -> int:
        """The offset it reads next."""
        return len(self.rows.get(bucket, ()))


def violations(
    writers: Iterable[WriterLog], readers: Iterable[ReaderLog], stored: Mapping[Bucket, BucketContent]
) -> list[str]:
    """Everything in which the store differs from what it promised; empty when it kept its word."""
    found: list[str] = []
    rows_by_bucket: dict[Bucket, list[Row]] = {}
    for bucket, content in stored.items():
        found += _offset_problems(bucket, content)
        rows_by_bucket[bucket] = [row for batch in content.batches for row in batch.rows]
    found += _row_problems({writer.number: writer for writer in writers}, rows_by_bucket)
    for reader in readers:
        found += reader.problems
        found += _reader_problems(reader, rows_by_bucket)
    return found


def check(writers: Iterable[WriterLog], readers: Iterable[ReaderLog], stored: Mapping[Bucket, BucketContent]) -> None:
    """Raise AssertionError with the violations, if there are any."""
    found = violations(writers, readers, stored)
    if found:
        shown = "\n".join(found[:_SHOWN_MAX])
        raise AssertionError(f"{len(found)} broken promises, the first are:\n{shown}")


def _offset_problems(bucket: Bucket, content: BucketContent) -> list[str]:
    problems = []
    expected = 0
    for batch in content.batches:
        if batch.base_offset != expected:
            problems.append(f"{bucket}: a batch at offset {batch.base_offset}, {expected} should follow")
        expected = batch.base_offset + len(batch.rows)
    if content.latest != expected:
        problems.append(f"{bucket}: the latest offset is {content.latest}, its rows end at {expected}")
    return problems


def _row_problems(writers: Mapping[int, WriterLog], stored: Mapping[Bucket, Sequence[Row]]) -> list[str]:
    problems: list[str] = []
    copies = {number: bytearray(writer.count) for number, writer in writers.items()}
    for bucket, rows in stored.items():
        last: dict[int, int] = {}
        for offset, row in enumerate(rows):
            writer = writers.get(row.writer)
            if writer is None or writer.table != bucket.table or not 0 <= row.sequence < writer.count:
                problems.append(f"phantom: {row} at offset {offset} of {bucket} was never sent there")
                continue
            counts = copies[row.writer]
            counts[row.sequence] = min(counts[row.sequence] + 1, 255)
            if row.sequence <= last.get(row.writer, -1):
                problems.append(f"order: {row} at offset {offset} of {bucket} lies behind {last[row.writer]}")
            last[row.writer] = row.sequence
    for number, writer in writers.items():
        problems += _fate_problems(writer, copies[number])
    return problems


def _fate_problems(writer: WriterLog, copies: bytearray) -> list[str]:
    problems = []
    for sequence, (fate, count) in enumerate(zip(writer.fates(), copies, strict=True)):
        if count > 1:
            problems.append(f"duplicate: {Row(writer.number, sequence)} is stored {count} times")
        if fate == Fate.ACKNOWLEDGED and count == 0:
            problems.append(f"lost: {Row(writer.number, sequence)} was acknowledged")
        if fate == Fate.REFUSED and count > 0:
            problems.append(f"trace: {Row(writer.number, sequence)} was refused and is stored")
    return problems


def _reader_problems(reader: ReaderLog, stored: Mapping[Bucket, Sequence[Row]]) -> list[str]:
    problems = []
    for bucket, seen in reader.rows.items():
        rows = stored.get(bucket, ())
        if list(rows[: len(seen)]) == seen:
            continue
        offset = next((at for at, (now, then) in enumerate(zip(rows, seen, strict=False)) if now != then), len(rows))
        now = rows[offset] if offset < len(rows) else "nothing"
        problems.append(f"{reader.name} saw {seen[offset]} at offset {offset} of {bucket}, where {now} is now")
    return problems
