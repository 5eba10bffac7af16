"""The Arrow payload of a log batch: one encapsulated message, in the table's compression, read as columns or rows.

Arrays are made here because pyarrow imports pandas, if it is there, for the first Python or numpy value that it
converts, and that takes a second and 45 MB.

Java leaves out the offsets of a nested array of length 0, as the Arrow format allows. pyarrow takes such an array for
valid, and reads beyond its end when it counts bytes or joins arrays; so offsets are made for it.

The schema is not in the payload, it comes from the batch's schema id. A payload must be written with the table's codec:
a server that projects columns rewrites the metadata and names that codec whatever the buffers hold.

Rows of small batches are read straight from the bytes of their message: most of the time between a row's arrival and
its reader would go into Arrow objects that are made for it and dropped. That is only for batches whose checksum holds:
what says nothing of the rows is not looked at.
"""

from __future__ import annotations

import functools
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.types as pt

from fluss.formats import kernel
from fluss.formats.arrow.messages import (
    LZ4_FRAME,
    RAW_PREFIX,
    ZSTD,
    MessageTemplate,
    message_template,
    parse_metadata,
    parse_record_batch_message,
)
from fluss.formats.batches.log_batch import CHANGE_TYPE_MAX, BatchHeader, BufferLike, payload_of
from fluss.model.errors import CorruptDataError
from fluss.model.tables.options import ARROW_COMPRESSION, ARROW_ZSTD_LEVEL, check_properties, choice

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


def numbers_array(numbers: Numbers, arrow_type: pa.DataType | None = None) -> pa.Array:
    """Numbers as int64, or as another type of 64 bits; nothing is copied."""
    return pa.Array.from_buffers(arrow_type or pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def places_array(places: Numbers) -> pa.Array:
    """Places of rows to take; a negative one is null, and so is what is taken."""
    is_valid = np.packbits(places >= 0, bitorder="little")
    return pa.Array.from_buffers(pa.int64(), len(places), [pa.py_buffer(is_valid), pa.py_buffer(places)])


def texts_array(texts: Sequence[str]) -> pa.Array:
    """A few texts."""
    encoded = [text.encode() for text in texts]
    ends = array("i", accumulate(map(len, encoded), initial=0))
    return pa.Array.from_buffers(pa.string(), len(texts), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


def numbers_of(numbers: pa.Array) -> Numbers:
    """The numbers of an int64 array without nulls; nothing is copied."""
    return np.frombuffer(numbers.buffers()[1], np.int64)[numbers.offset : numbers.offset + len(numbers)]


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows; arrays of length 0 inside of them are made anew, all others keep their buffers."""
    return pa.RecordBatch.from_arrays([_complete(column) for column in batch.columns], schema=batch.schema)


def _complete(array: pa.Array) -> pa.Array:
    if len(array) == 0:
        return pa.nulls(0, array.type)
    if pt.is_struct(array.type):
        children = [_complete(array.field(index)) for index in range(array.type.num_fields)]
        buffers = array.buffers()[:1]
    elif pt.is_list(array.type) or pt.is_map(array.type):
        children = [_complete(array.values)]  # those of a map are structs
        buffers = array.buffers()[:2]
    else:
        return array
    return pa.Array.from_buffers(array.type, len(array), buffers, array.null_count, children=children)


ZSTD_LEVEL_DEFAULT: Final = 3

# Arrow's thread pool costs about 0.1 ms per batch; from this size on, working on columns side by side pays for it.
THREADED_SIZE_MIN_BYTES: Final = 512 << 10

# Buffers up to this size on average are stored raw: compressing them takes five times as long and saves nothing.
RAW_BUFFER_SIZE_MAX_BYTES: Final = 48
RAW_ROWS_MAX: Final = 8 * RAW_BUFFER_SIZE_MAX_BYTES  # a value takes a bit at least
_RAW_COLUMN_SIZE_MAX_BYTES: Final = 512  # with metadata; a batch that takes more on average is not even tried

# From this row count on, looking at strings in our own way is quicker than Arrow's validation of a batch.
_OWN_VALIDATION_ROWS_MIN: Final = 256

_READ_OPTIONS: Final = {use_threads: ipc.IpcReadOptions(use_threads=use_threads) for use_threads in (False, True)}
_BOOL: Final = pa.bool_()
_STRING: Final = pa.string()
_BINARY: Final = pa.binary()
_ALIGNMENT_BYTES: Final = 8
_END_OF_STREAM_BYTES: Final = 8
_CHANGE_TYPES: Final = bytes(range(CHANGE_TYPE_MAX + 1))


class Compression(StrEnum):
    NONE = "NONE"
    LZ4_FRAME = "LZ4_FRAME"
    ZSTD = "ZSTD"


@dataclass(frozen=True, slots=True)
class Codec:
    """How a table's Arrow buffers are compressed."""

    compression: Compression = Compression.ZSTD
    zstd_level: int = ZSTD_LEVEL_DEFAULT

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Codec:
        """The codec that table properties ask for; ZSTD at level 3 when they say nothing."""
        given = {key: properties[key] for key in (ARROW_COMPRESSION, ARROW_ZSTD_LEVEL) if key in properties}
        check_properties(given)
        compression = Compression(choice(given, ARROW_COMPRESSION))
        return cls(compression, int(given.get(ARROW_ZSTD_LEVEL, ZSTD_LEVEL_DEFAULT)))


@functools.lru_cache(maxsize=64)
def _write_options(codec: Codec, use_threads: bool) -> ipc.IpcWriteOptions:
    if codec.compression is Compression.ZSTD:
        return ipc.IpcWriteOptions(
            compression=pa.Codec("zstd", compression_level=codec.zstd_level), use_threads=use_threads
        )
    return ipc.IpcWriteOptions(compression="lz4", use_threads=use_threads)


def encode(batch: pa.RecordBatch, codec: Codec) -> pa.Buffer:
    """The payload for `batch`; empty when it has no rows, as a batch without records is only a header."""
    if batch.num_rows == 0:
        return pa.py_buffer(b"")
    if codec.compression is Compression.NONE:
        return batch.serialize()
    size_max = _RAW_COLUMN_SIZE_MAX_BYTES * batch.num_columns
    if batch.num_rows <= RAW_ROWS_MAX and ipc.get_record_batch_size(batch) <= size_max:
        plain = memoryview(batch.serialize()).cast("B")
        message = parse_metadata(plain)
        body = plain[message.body_start :]
        if 0 < len(body) <= RAW_BUFFER_SIZE_MAX_BYTES * (len(message.buffers) // 2):
            template = raw_template(codec, len(message.nodes) // 2, len(message.buffers) // 2)
            spans = zip(message.buffers[::2], message.buffers[1::2], strict=True)
            buffers = [body[start : start + size] for start, size in spans]
            return pa.py_buffer(template.raw_message(message.row_count, message.nodes, buffers))
    return _encode_compressed(batch, codec)


def raw_template(codec: Codec, node_count: int, buffer_count: int) -> MessageTemplate:
    """What makes payloads with raw buffers for a codec that compresses."""
    return message_template(node_count, buffer_count, ZSTD if codec.compression is Compression.ZSTD else LZ4_FRAME)


def _encode_compressed(batch: pa.RecordBatch, codec: Codec) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    # The total is quick to get but counts all of a slice's parent, so it only rules threads out.
    use_threads = batch.get_total_buffer_size() >= THREADED_SIZE_MIN_BYTES and batch.nbytes >= THREADED_SIZE_MIN_BYTES
    options = _write_options(codec, use_threads)
    # pyarrow compresses only inside a stream: drop the schema message before the batch and the end mark behind it.
    with ipc.RecordBatchStreamWriter(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    schema_message_size = 8 + int.from_bytes(memoryview(stream)[4:8], "little")
    return stream.slice(schema_message_size, stream.size - schema_message_size - _END_OF_STREAM_BYTES)


def decode(buf: BufferLike | pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The record batch in a payload. Its buffers lie in `buf` where that is possible, so keep `buf` unchanged."""
    payload = buf if isinstance(buf, pa.Buffer) else pa.py_buffer(buf)
    if payload.size == 0:
        return empty_batch(schema)
    message = parse_record_batch_message(memoryview(payload).cast("B"))
    try:
        if message.compressed:
            batch = _decompressed(payload, schema, message.decoded_size_bytes >= THREADED_SIZE_MIN_BYTES)
        elif message.has_raw_buffers and payload.address % _ALIGNMENT_BYTES:
            batch = ipc.read_record_batch(_aligned_copy(payload), schema)
        else:
            batch = ipc.read_record_batch(payload, schema)
        _validate(batch)
    except (pa.ArrowException, OSError) as error:
        raise CorruptDataError(f"Arrow payload: {error}") from error
    return with_offsets(batch) if 0 in message.metadata.nodes[::2] else batch


def _validate(batch: pa.RecordBatch) -> None:
    """Raise `pa.ArrowException` unless all values can be used safely.

    In full: offsets that point outside their buffer crash the code that follows them, and anyone may have written them.
    """
    if not kernel.COMPILED or batch.num_rows < _OWN_VALIDATION_ROWS_MIN:
        batch.validate(full=True)
        return
    batch.validate()
    for column in batch.columns:
        if not _is_sound_string_column(column):
            column.validate(full=True)


def _is_sound_string_column(column: pa.Array) -> bool:
    """Arrow looks at every string by itself, which takes most of the time of reading a batch; text is mostly ASCII."""
    text = column.type.equals(_STRING)
    if not text and not column.type.equals(_BINARY):
        return False
    validity, offsets, data = column.buffers()
    if offsets is None or data is None:
        return False
    if column.null_count:
        # A wrong null count is as dangerous as wrong offsets.
        valid = pa.Array.from_buffers(_BOOL, len(column), [None, validity], 0, column.offset)
        if valid.true_count + column.null_count != len(column):
            return False
    return kernel.are_strings_sound(
        memoryview(offsets).cast("B"), memoryview(data).cast("B"), column.offset, len(column), text
    )


def decode_changes(
    buf: BufferLike, position: int, header: BatchHeader, schema: pa.Schema
) -> tuple[bytes | None, pa.RecordBatch]:
    """Change types (None when append-only: every row is +A) and rows of the log batch at `position`."""
    change_types, payload = payload_of(buf, position, header)
    batch = decode(payload, schema)
    if batch.num_rows != header.record_count:
        raise CorruptDataError(
            f"log batch at byte {position}: {header.record_count} records announced, the payload has {batch.num_rows}"
        )
    if change_types is None:
        return None, batch
    changes = bytes(change_types)
    unknown = changes.translate(None, _CHANGE_TYPES)
    if unknown:
        raise CorruptDataError(f"log batch at byte {position}: unknown change type {unknown[0]}")
    return changes, batch


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _decompressed(payload: pa.Buffer, schema: pa.Schema, use_threads: bool) -> pa.RecordBatch:
    # Only a stream reader takes options and a pool, so give it a stream. The copy is small, and aligned.
    stream = pa.py_buffer(b"".join((schema.serialize(), payload)))
    reader = ipc.RecordBatchStreamReader(stream, options=_READ_OPTIONS[use_threads], memory_pool=_pool())
    return reader.read_next_batch()


def _pool() -> pa.MemoryPool:
    """The memory pool for rows: pyarrow's default, or the system's in place of mimalloc.

    Its mimalloc asks for huge pages. A virtual machine may have to get each from its host, piece by piece, which takes
    longer than decompressing what goes there: the rows of a large table took twice as long as those of a small one.
    """
    pool = pa.default_memory_pool()
    return pa.system_memory_pool() if pool.backend_name == "mimalloc" else pool


def _aligned_copy(payload: pa.Buffer) -> pa.Buffer:
    copy = pa.allocate_buffer(payload.size)
    memoryview(copy).cast("B")[:] = memoryview(payload).cast("B")
    return copy


ROWS_MAX: Final = 16
_UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}  # in a second
_NUMBERS: Final = {
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.float32(): "f",
    pa.float64(): "d",
}


class _Unfit(Exception):  # noqa: N818  # no failure: such batches are read through Arrow
    pass


class _Column(NamedTuple):
    name: str
    number: str  # struct's letter, "" for strings and bytes
    is_text: bool
    units: int  # of a timestamp in a second, otherwise 0
    zone: Any

    @property
    def buffer_count(self) -> int:
        return 2 if self.number else 3


class RawRows:
    """Reads batches of one schema."""

    __slots__ = ("_buffer_count", "_columns", "no_rows")

    def __init__(self, schema: pa.Schema, columns: list[_Column]) -> None:
        self.no_rows = empty_batch(schema)
        """A batch of the schema."""
        self._columns = columns
        self._buffer_count = sum(column.buffer_count for column in columns)

    @classmethod
    def of(cls, schema: pa.Schema) -> RawRows | None:
        """None where the schema has columns that are read through Arrow only."""
        columns = [_column(field.name, field.type) for field in schema]
        return cls(schema, [column for column in columns if column is not None]) if all(columns) else None

    def read(self, payload: memoryview) -> list[dict[str, Any]] | None:
        """None for a batch that is not small, plain and sound: read through Arrow, it has its rows or its error."""
        try:
            return self._read(payload)
        except (_Unfit, CorruptDataError, struct.error, ValueError, OverflowError):
            return None

    def _read(self, payload: memoryview) -> list[dict[str, Any]]:
        metadata = parse_metadata(payload)
        count, nodes, places = metadata.row_count, metadata.nodes, metadata.buffers
        if not 0 < count <= ROWS_MAX or len(nodes) != 2 * len(self._columns) or len(places) != 2 * self._buffer_count:
            raise _Unfit
        body = payload[metadata.body_start :]
        is_prefixed = metadata.codec is not None
        rows: list[dict[str, Any]] = [{} for _ in range(count)]
        first = 0
        for number, column in enumerate(self._columns):
            end = first + 2 * column.buffer_count
            buffers = [_buffer(body, places[at], places[at + 1], is_prefixed) for at in range(first, end, 2)]
            first = end
            values = _values(column, count, nodes[2 * number], nodes[2 * number + 1], buffers)
            for row, value in zip(rows, values, strict=True):
                row[column.name] = value
        return rows


def _column(name: str, arrow_type: pa.DataType) -> _Column | None:
    if pt.is_timestamp(arrow_type):
        return _Column(name, "q", False, _UNITS[arrow_type.unit], None if arrow_type.tz is None else UTC)
    if pt.is_string(arrow_type) or pt.is_binary(arrow_type):
        return _Column(name, "", pt.is_string(arrow_type), 0, None)
    number = _NUMBERS.get(arrow_type)
    return None if number is None else _Column(name, number, False, 0, None)


def _buffer(body: memoryview, start: int, size: int, is_prefixed: bool) -> memoryview:
    if is_prefixed and size:
        if body[start : start + 8] != RAW_PREFIX:
            raise _Unfit
        return body[start + 8 : start + size]
    return body[start : start + size]


def _values(column: _Column, count: int, length: int, null_count: int, buffers: list[memoryview]) -> list[Any]:
    validity, values = buffers[:2]
    if length != count or not 0 <= null_count <= count:
        raise _Unfit
    found: list[Any]
    if column.number:
        found = list(struct.unpack_from(f"<{count}{column.number}", values))
    else:
        found = _variable(column, struct.unpack_from(f"<{count + 1}i", values), buffers[2])
    if null_count:
        bits = int.from_bytes(validity[: (count + 7) >> 3], "little") & ((1 << count) - 1)
        if 8 * len(validity) < count or count - bits.bit_count() != null_count:
            raise _Unfit
        found = [value if bits >> row & 1 else None for row, value in enumerate(found)]
    return kernel.datetimes_of(found, column.units, column.zone) if column.units else found


def _variable(column: _Column, offsets: tuple[int, ...], data: memoryview) -> list[Any]:
    if offsets[0] < 0 or offsets[-1] > len(data) or list(offsets) != sorted(offsets):
        raise _Unfit
    pieces = [data[start:end] for start, end in pairwise(offsets)]
    return [str(piece, "utf-8") for piece in pieces] if column.is_text else [bytes(piece) for piece in pieces]
