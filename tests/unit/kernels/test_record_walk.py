"""The structure of row-format batches, by both kernels."""

from __future__ import annotations

import struct
from types import ModuleType

import pytest

from fluss.formats import _kernel, kernel
from fluss.formats.batches.log_batch import parse_header, payload_of
from tests.kit.formats.vectors import LOG_INDEXED_ROW

pytestmark = pytest.mark.parametrize("walker", [_kernel, kernel.implementation], ids=["plain", "in use"])


def _record(row: bytes, change_type: int = 0) -> bytes:
    return struct.pack("<iB", 1 + len(row), change_type) + row


def test_records(walker: ModuleType) -> None:
    header = parse_header(LOG_INDEXED_ROW)
    assert walker.are_records_sound(payload_of(LOG_INDEXED_ROW, 0, header)[1], header.record_count)
    data = b"".join(_record(b"r" * size) for size in range(1, 300))
    assert walker.are_records_sound(data, 299)
    assert walker.are_records_sound(memoryview(data), 299)
    assert walker.are_records_sound(b"", 0)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 1),
        (b"", -1),
        (_record(b"row"), 0),
        (_record(b"row"), 2),
        (_record(b"row"), 2**31 - 1),
        (_record(b"row") + b"\0", 1),
        (_record(b"row")[:-1], 1),
        (_record(b""), 1),
        (_record(b"row", 1), 1),
        (struct.pack("<i", -1) + b"\0row", 1),
        (struct.pack("<i", 2**31 - 1) + b"\0row", 1),
        (struct.pack("<i", 0) + b"\0row", 1),
    ],
)
def test_what_is_no_record(walker: ModuleType, data: bytes, count: int) -> None:
    assert not walker.are_records_sound(data, count)
