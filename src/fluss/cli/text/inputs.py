"""Rows from files and standard input: Parquet, CSV, JSON lines and Arrow, in batches of a table's types."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import click
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


STDIN: Final = "-"
FORMATS: Final = ("parquet", "csv", "tsv", "json", "arrow")
BATCH_ROWS_MAX: Final = 65_536
# Parquet and Arrow files are read from their end, so standard input is kept until then.
STDIN_BYTES_MAX: Final = 1 << 30
_BLOCK_BYTES: Final = 4 << 20
_SUFFIXES: Final = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_ARROW_FILE_MAGIC: Final = b"ARROW1"

Value = TypeVar("Value")


class Input:
    """A file, or standard input; its format is named, or told by its ending."""

    def __init__(self, path: str, format: str | None = None, delimiter: str | None = None) -> None:
        self.name = "standard input" if path == STDIN else path
        self._path = None if path == STDIN else Path(path)
        self.format = format or self._told_format()
        self._delimiter = delimiter or ("\t" if self.format == "tsv" else ",")

    def _told_format(self) -> str:
        if self._path is None:
            raise FlussError(f"Standard input has no name that tells its format: say --format {'|'.join(FORMATS)}.")
        suffixes = [suffix.lower() for suffix in self._path.suffixes if suffix.lower() not in _COMPRESSIONS]
        found = _SUFFIXES.get(suffixes[-1]) if suffixes else None
        if found is None:
            raise FlussError(f"The name of {self.name} does not tell its format: say --format {'|'.join(FORMATS)}.")
        return found

    def row_count(self) -> int | None:
        """How many rows there are, where that is told without reading them."""
        if self.format != "parquet" or self._path is None:
            return None
        import pyarrow.parquet as pq

        return self._explained(lambda: int(pq.read_metadata(self._path).num_rows))

    def schema(self) -> pa.Schema:
        """The types of the columns, as the file says or as its first rows look."""

        def read() -> pa.Schema:
            with self._opened() as stream:
                if self.format == "json":
                    return inferred_schema(stream, _BLOCK_BYTES)
                return self._reader(stream, None).schema

        return self._explained(read)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """All rows in batches of this schema; an error names file, row and column."""
        reading = self._read(schema)
        while True:
            batch = self._explained(lambda: next(reading, None))
            if batch is None:
                return
            yield batch

    def _read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self._opened() as stream:
            if self.format == "json":
                yield from read_json_lines(stream, schema, _BLOCK_BYTES)
                return
            done = 0
            for batch in self._reader(stream, schema):
                for start in range(0, batch.num_rows, BATCH_ROWS_MAX):
                    part = batch.slice(start, BATCH_ROWS_MAX)
                    try:
                        yield fit(part, schema)
                    except MisfitError as error:
                        raise FlussError(f"row {done + error.row + 1:,}, {error.message}.") from None
                    done += part.num_rows

    def _explained(self, read: Callable[[], Value]) -> Value:
        try:
            return read()
        except FlussError as error:
            raise FlussError(f"{self.name}, {error.message}") from None
        except FileNotFoundError:
            raise FlussError(f"There is no file {self.name}.") from None
        except (pa.ArrowException, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise FlussError(f"{self.name} can't be read as {self.format}: {reason}") from None

    def _opened(self) -> Any:
        if self._path is None:
            return sys.stdin.buffer
        compression = _COMPRESSIONS.get(self._path.suffix.lower())
        if compression is not None and self.format != "parquet":
            return pa.CompressedInputStream(pa.OSFile(str(self._path)), compression)
        return self._path.open("rb")

    def _reader(self, stream: IO[bytes], schema: pa.Schema | None) -> pa.RecordBatchReader:
        if self.format in ("csv", "tsv"):
            return _csv_reader(stream, self._delimiter, schema)
        if self.format == "parquet":
            import pyarrow.parquet as pq

            file = pq.ParquetFile(_kept(stream) if self._path is None else stream)
            return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches(BATCH_ROWS_MAX))
        return _arrow_reader(stream)


def _csv_reader(stream: IO[bytes], delimiter: str, schema: pa.Schema | None) -> pa.RecordBatchReader:
    """Columns of the table as texts, which are converted later; a text that is empty and not quoted is null."""
    import pyarrow.csv as pacsv

    convert = pacsv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    if schema is not None:
        convert.column_types = {name: pa.string() for name in schema.names}
        convert.null_values = [""]
    return pacsv.open_csv(
        stream,
        pacsv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
        pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert,
    )


def _arrow_reader(stream: IO[bytes]) -> pa.RecordBatchReader:
    """The reader of an Arrow file or stream."""
    peek = getattr(stream, "peek", None)
    if peek is None or peek(len(_ARROW_FILE_MAGIC))[: len(_ARROW_FILE_MAGIC)] != _ARROW_FILE_MAGIC:
        return pa.ipc.open_stream(stream)
    file = pa.ipc.open_file(stream if stream.seekable() else _kept(stream))
    parts = (file.get_batch(index) for index in range(file.num_record_batches))
    return pa.RecordBatchReader.from_batches(file.schema, parts)


def _kept(stream: IO[bytes]) -> pa.BufferReader:
    data = stream.read(STDIN_BYTES_MAX + 1)
    if len(data) > STDIN_BYTES_MAX:
        raise FlussError(f"more than {STDIN_BYTES_MAX >> 20} MiB; write it to a file and name that.")
    return pa.BufferReader(data)


def check_inputs(files: Sequence[str], format: str | None, delimiter: str | None) -> list[Input]:
    """The files of a command, or standard input if none is named; all must be there before the first is read."""
    if delimiter is not None and len(delimiter) != 1:
        raise click.UsageError(f"--delimiter is one character, not {delimiter!r}.")
    inputs = [Input(path, format, delimiter) for path in files or (STDIN,)]
    for path in files:
        if path != STDIN and not Path(path).is_file():
            raise FlussError(f"There is no file {path}.")
    return inputs
