"""Changed batches in every reader: rows or a FlussError, never another exception, and never a crash of the process."""

from __future__ import annotations

import random
import time

import pyarrow as pa
import pytest

import fluss
from fluss.formats.arrow.messages import ArrowLayout, ColumnSlicer, parse_record_batch_message
from fluss.formats.arrow.payload import decode, decode_changes
from fluss.formats.batches import statistics
from fluss.formats.batches.log_batch import BatchHeader, parse_header, payload_of, statistics_of, verify_crc, walk
from fluss.formats.rows import codecs
from fluss.formats.rows.python_rows import to_rows
from fluss.model.errors import FlussError
from tests.kit.batch_samples import FLAT_ROWS, NESTED_ROWS, good_batches
from tests.kit.mutations import mutated_batch

SHORT_S, LONG_S = 1.5, 300.0
DURATIONS = pytest.mark.parametrize(
    "seconds",
    [SHORT_S, pytest.param(LONG_S, marks=[pytest.mark.full, pytest.mark.timeout(900)])],
    ids=["short", "long"],
)
SAMPLES = {
    "flat": (FLAT_ROWS, "ARROW", "none"),
    "nested": (NESTED_ROWS, "ARROW", "none"),
    "nested zstd": (NESTED_ROWS, "ARROW", "zstd"),
    "nested lz4": (NESTED_ROWS, "ARROW", "lz4"),
    "rows": (FLAT_ROWS, "INDEXED", "none"),
    "nested rows": (NESTED_ROWS, "INDEXED", "none"),
}


class Readers:
    """All that look into a batch, on the server and on the client."""

    def __init__(self, rows: pa.RecordBatch, log_format: str) -> None:
        self._schema = fluss.Schema(rows.schema)
        self._arrow_schema = rows.schema
        self._log_format = log_format
        self._types = [column.data_type for column in self._schema.columns]
        self._layout = ArrowLayout(self._types)
        self.succeeded = 0

    def read(self, batch: bytes, chance: random.Random) -> None:
        for reader in (self._walk, self._whole, self._statistics, self._sliced):
            try:
                reader(batch, chance)
                self.succeeded += 1
            except FlussError:
                pass

    def _walk(self, batch: bytes, _: random.Random) -> None:
        for position, header in walk(batch + batch):
            verify_crc(batch + batch, position, header)

    def _whole(self, batch: bytes, _: random.Random) -> None:
        header = self._header(batch)
        if self._log_format == "ARROW":
            _, rows = decode_changes(batch, 0, header, self._arrow_schema)
        else:
            payload = payload_of(batch, 0, header)[1]
            _, rows = codecs.decode(payload, header.record_count, self._schema, self._log_format)
        rows.validate(full=True)
        for row in to_rows(rows):
            str(row)

    def _statistics(self, batch: bytes, _: random.Random) -> None:
        header = self._header(batch)
        if header.statistics_size_bytes:
            statistics.decode(statistics_of(batch, 0, header), self._types)

    def _sliced(self, batch: bytes, chance: random.Random) -> None:
        """As the server does for a projection, and the client with its result."""
        if self._log_format != "ARROW":
            return
        payload = payload_of(batch, 0, self._header(batch))[1]
        message = parse_record_batch_message(payload)
        self._layout.check(message.metadata.row_count, message.metadata.nodes, message.decoded_sizes)
        columns = sorted(chance.sample(range(len(self._types)), chance.randint(1, len(self._types))))
        pieces, size_bytes = ColumnSlicer(self._layout, columns, ArrowLayout(())).slice(payload)
        sliced = b"".join(pieces)
        assert len(sliced) == size_bytes
        decode(sliced, pa.schema([self._arrow_schema.field(column) for column in columns])).validate(full=True)

    def _header(self, batch: bytes) -> BatchHeader:
        header = parse_header(batch)
        if header.size_bytes != len(batch):
            raise FlussError("another length")
        return header


@DURATIONS
@pytest.mark.parametrize("sample", SAMPLES)
def test_changed_batches(sample: str, chance: random.Random, seconds: float) -> None:
    rows, log_format, codec = SAMPLES[sample]
    good = good_batches(rows, log_format, codec)
    readers = Readers(rows, log_format)
    for batch in good:
        readers.read(batch, chance)
    assert readers.succeeded == 4 * len(good)
    number = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        readers.read(mutated_batch(chance.choice(good), chance), chance)
        number += 1
    print(f"{number} batches, {readers.succeeded} of {4 * number} readings succeeded")
