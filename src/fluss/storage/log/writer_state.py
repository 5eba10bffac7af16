"""The state of a bucket's idempotent writers: the last five batches of each, by which a repeated one is known.

The state is a fold over the log, so its file form is disposable: a snapshot says up to which offset it speaks, and the
batches behind it are folded in. Folding needs no clock: expiry is decided when a batch arrives, and a writer that
begins again at sequence 0 replaces what it was before.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import filterfalse
from typing import Final, NamedTuple, TypeAlias

from fluss.formats.batches.log_batch import BatchHeader, crc32c
from fluss.model.errors import ErrorCode, FlussError

REMEMBERED_BATCHES: Final = 5
SEQUENCE_MAX: Final = 2**31 - 1
# Above this the longest idle writer is forgotten; its next batch is refused, and its client asks for a new id.
WRITERS_MAX: Final = 10_000
EXPIRY_MS: Final = 7 * 24 * 60 * 60 * 1000

_MAGIC: Final = b"FLWR"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<4sHxxqI")  # magic, version, end offset, writers
_WRITER: Final = struct.Struct("<qqi")  # writer id, last commit time in ms, batches
_BATCH: Final = struct.Struct("<iqq")  # sequence, base offset, last offset
_CRC: Final = struct.Struct("<I")


class StoredBatch(NamedTuple):
    sequence: int
    base_offset: int
    last_offset: int


class _Writer:
    __slots__ = ("batches", "timestamp_ms")

    def __init__(self) -> None:
        self.timestamp_ms = 0
        self.batches: list[StoredBatch] = []


KeepsWriter: TypeAlias = Callable[[int], bool]


def keeps_none(_: int) -> bool:
    return False


def next_sequence(sequence: int) -> int:
    return 0 if sequence == SEQUENCE_MAX else sequence + 1


class WriterTable:
    """Writers of one bucket, the one that wrote last at the end."""

    def __init__(self, expiry_ms: int = EXPIRY_MS, keeps: KeepsWriter = keeps_none) -> None:
        """Writers that `keeps` names are not forgotten, however long idle."""
        self._expiry_ms = expiry_ms
        self._keeps = keeps
        self._writers: dict[int, _Writer] = {}

    def __len__(self) -> int:
        return len(self._writers)

    def check(self, writer_id: int, sequence: int, now_ms: int) -> StoredBatch | None:
        """None when the batch is the next one, the stored batch when it is a repeat; otherwise code 31."""
        writer = self._writers.get(writer_id)
        if writer is not None and now_ms - writer.timestamp_ms > self._expiry_ms and not self._keeps(writer_id):
            writer = None
        batches = writer.batches if writer is not None else []
        expected = next_sequence(batches[-1].sequence) if batches else 0
        if sequence == expected:
            return None
        for batch in batches:
            if batch.sequence == sequence:
                return batch
        raise FlussError(
            f"Writer {writer_id}: batch sequence {sequence} is out of order, {expected} is expected.",
            ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
        )

    def last_sequence(self, writer_id: int) -> int | None:
        """The sequence of a writer's last batch; None when it is not known."""
        writer = self._writers.get(writer_id)
        return None if writer is None else writer.batches[-1].sequence

    def forget(self, writer_id: int) -> None:
        """The writer will not come back."""
        self._writers.pop(writer_id, None)

    def record(self, writer_id: int, stored: StoredBatch, timestamp_ms: int) -> None:
        """Fold in a batch that is in the log."""
        writer = self._writers.pop(writer_id, None) or _Writer()
        batches = writer.batches
        if batches and stored.sequence != next_sequence(batches[-1].sequence):
            batches.clear()
        elif len(batches) == REMEMBERED_BATCHES:
            del batches[0]
        batches.append(stored)
        writer.timestamp_ms = timestamp_ms
        self._writers[writer_id] = writer
        if len(self._writers) > WRITERS_MAX:
            self.forget(next(filterfalse(self._keeps, self._writers), writer_id))

    def fold(self, header: BatchHeader) -> None:
        """Fold in a batch by the header it has in the log."""
        if header.writer_id >= 0:
            stored = StoredBatch(header.batch_sequence, header.base_offset, header.last_offset)
            self.record(header.writer_id, stored, header.commit_timestamp_ms)

    def encode(self, end_offset: int) -> bytes:
        """A snapshot that speaks for every batch before `end_offset`."""
        parts = [_HEADER.pack(_MAGIC, _VERSION, end_offset, len(self._writers))]
        for writer_id, writer in self._writers.items():
            parts.append(_WRITER.pack(writer_id, writer.timestamp_ms, len(writer.batches)))
            parts.extend(_BATCH.pack(*batch) for batch in writer.batches)
        body = b"".join(parts)
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def decode(
        cls, data: bytes, expiry_ms: int = EXPIRY_MS, keeps: KeepsWriter = keeps_none
    ) -> tuple[WriterTable, int] | None:
        """The table and its end offset, or None for a file that can't be trusted."""
        if len(data) < _HEADER.size + _CRC.size:
            return None
        body = memoryview(data)[: -_CRC.size]
        if crc32c(body) != _CRC.unpack_from(data, len(body))[0]:
            return None
        magic, version, end_offset, count = _HEADER.unpack_from(body)
        if (magic, version) != (_MAGIC, _VERSION):
            return None
        table = cls(expiry_ms, keeps)
        at = _HEADER.size
        for _ in range(count):
            writer = _Writer()
            writer_id, writer.timestamp_ms, batches = _WRITER.unpack_from(body, at)
            at += _WRITER.size
            end = at + batches * _BATCH.size
            writer.batches = [StoredBatch(*fields) for fields in _BATCH.iter_unpack(body[at:end])]
            at = end
            table._writers[writer_id] = writer
        return table, end_offset
