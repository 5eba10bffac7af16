"""The Arrow payload of a log batch: exactly one encapsulated record batch message, with the table's compression.

The schema is not in the payload, it comes from the batch's schema id. A payload must be written with the table's codec:
a server that projects columns rewrites the metadata and names that codec whatever the buffers hold.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pyarrow as pa
import pyarrow.ipc as ipc

from fluss.formats import kernel
from fluss.formats.arrow.arrays import with_offsets
from fluss.formats.arrow.messages import (
    LZ4_FRAME,
    ZSTD,
    MessageTemplate,
    message_template,
    parse_metadata,
    parse_record_batch_message,
)
from fluss.formats.batches.log_batch import CHANGE_TYPE_MAX, BatchHeader, BufferLike, payload_of
from fluss.model.errors import CorruptDataError
from fluss.model.tables.options import ARROW_COMPRESSION, ARROW_ZSTD_LEVEL, check_properties

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
        compression = Compression(given.get(ARROW_COMPRESSION, Compression.ZSTD).upper())
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

    In full: offsets that point outside their buffer crash whoever follows them, and anyone may have written them.
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
    """No rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _decompressed(payload: pa.Buffer, schema: pa.Schema, use_threads: bool) -> pa.RecordBatch:
    # Only a stream reader takes options and a pool, so give it a stream. The copy is small, and aligned.
    stream = pa.py_buffer(b"".join((schema.serialize(), payload)))
    reader = ipc.RecordBatchStreamReader(stream, options=_READ_OPTIONS[use_threads], memory_pool=_pool())
    return reader.read_next_batch()


def _pool() -> pa.MemoryPool:
    """Where rows are put: not where pyarrow puts them unless told otherwise.

    Its mimalloc asks for huge pages. A virtual machine may have to get each from its host, piece by piece, which takes
    longer than decompressing what goes there: the rows of a large table took twice as long as those of a small one.
    """
    pool = pa.default_memory_pool()
    return pa.system_memory_pool() if pool.backend_name == "mimalloc" else pool


def _aligned_copy(payload: pa.Buffer) -> pa.Buffer:
    copy = pa.allocate_buffer(payload.size)
    memoryview(copy).cast("B")[:] = memoryview(payload).cast("B")
    return copy
