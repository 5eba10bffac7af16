"""JSON lines as Arrow batches: parsed by Arrow, and line by line where that can't be, or to say which line is bad."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.json as pajson
import pyarrow.types as pt

from fluss.cli.text.coerce import MisfitError, check_names, fit, from_plain, loads, unknown_field
from fluss.model.errors import FlussError

LINE_BYTES_MAX: Final = 64 << 20


def read_json_lines(stream: IO[bytes], schema: pa.Schema, block_bytes: int) -> Iterator[pa.RecordBatch]:
    """Batches of a table's types; an error names line and column."""
    lines_before = 0
    for block in _blocks(stream, block_bytes):
        if block.strip():
            try:
                yield fit(_parsed(block, schema), schema)
            except MisfitError as error:
                raise FlussError(f"line {lines_before + _line(block, error.row):,}, {error.message}.") from None
            except pa.ArrowException:
                yield _parsed_by_line(block, schema, lines_before)
        lines_before += block.count(b"\n")


def inferred_schema(stream: IO[bytes], block_bytes: int) -> pa.Schema:
    """The types that the first lines look like."""
    block = next(_blocks(stream, block_bytes), b"")
    if not block.strip():
        raise FlussError("it has no rows to tell types from.")
    return pajson.read_json(io.BytesIO(block), pajson.ReadOptions(block_size=len(block) + 1)).schema


def _blocks(stream: IO[bytes], block_bytes: int) -> Iterator[bytes]:
    """Whole lines, about so many bytes at a time."""
    rest = b""
    # What is there is taken at once: whoever writes to a pipe line by line may not end soon.
    read = getattr(stream, "read1", stream.read)
    while data := read(block_bytes):
        lines, newline, tail = (rest + data).rpartition(b"\n")
        if len(tail) > LINE_BYTES_MAX:
            raise FlussError(f"a line is longer than {LINE_BYTES_MAX >> 20} MiB; is it JSON lines, an object per line?")
        if newline:
            yield lines + newline
        rest = tail
    if rest:
        yield rest


def _parsed(block: bytes, schema: pa.Schema) -> pa.RecordBatch:
    carriers = pa.schema([pa.field(field.name, _carrier(field.type)) for field in schema])
    table = pajson.read_json(
        io.BytesIO(block),
        pajson.ReadOptions(use_threads=False, block_size=len(block) + 1),
        pajson.ParseOptions(explicit_schema=carriers),
    )
    for field in carriers:
        if unknown_field(table.schema.field(field.name).type, field.type) is not None:
            raise pa.ArrowInvalid("an unknown field, in a line that is still to be found")
    return table.combine_chunks().to_batches()[0]


def _carrier(kind: pa.DataType) -> pa.DataType:
    """The type as which Arrow reads values of a type from JSON; times and bytes are texts there, maps it can't read."""
    if pt.is_list(kind):
        return pa.list_(_carrier(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, _carrier(field.type)) for field in kind])
    if pt.is_map(kind) or (pt.is_decimal(kind) or pt.is_boolean(kind)):
        return kind
    if pt.is_integer(kind):
        return pa.int64()
    return pa.float64() if pt.is_floating(kind) else pa.string()


def _line(block: bytes, row: int) -> int:
    """The line of a row, from 1: empty lines are no rows."""
    numbers = [number for number, line in enumerate(block.split(b"\n"), 1) if line.strip()]
    return numbers[row]


def _parsed_by_line(block: bytes, schema: pa.Schema, lines_before: int) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = []
    names: dict[str, None] = {}
    for number, line in enumerate(block.split(b"\n"), lines_before + 1):
        if not line.strip():
            continue
        try:
            row = loads(line)
        except (ValueError, RecursionError) as error:
            raise FlussError(f"line {number:,}: this is not JSON: {error}.") from None
        if not isinstance(row, dict):
            raise FlussError(f"line {number:,}: there must be one JSON object per line.")
        rows.append(row)
        names.update(dict.fromkeys(row))
    check_names(list(names), schema)
    try:
        fields = [schema.field(name) for name in names]
        columns = [from_plain([row.get(field.name) for row in rows], field) for field in fields]
        return fit(pa.record_batch(columns, schema=pa.schema(fields)), schema)
    except MisfitError as error:
        raise FlussError(f"line {lines_before + _line(block, error.row):,}, {error.message}.") from None
