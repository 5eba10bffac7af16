"""Rows from files and standard input: Parquet, CSV, JSON lines and Arrow, in batches of a table's types."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import click
import pyarrow as pa
import pyarrow.json as pajson
import pyarrow.types as pt

from fluss.cli.text import file_process
from fluss.cli.text.coerce import MisfitError, check_names, fit, from_plain, loads, unknown_field
from fluss.cli.text.file_process import BATCH_ROWS_MAX, STDIN
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
            except (pa.ArrowException, UnicodeDecodeError):
                yield _parsed_by_line(block, schema, lines_before)
        lines_before += block.count(b"\n")


def inferred_schema(stream: IO[bytes], block_bytes: int) -> pa.Schema:
    """The types that the first lines look like."""
    block = next(_blocks(stream, block_bytes), b"")
    if not block.strip():
        raise FlussError("it has no rows to tell types from.")
    if not _looks_like_objects(block):
        _objects(block, 0)
    return pajson.read_json(io.BytesIO(block), pajson.ReadOptions(block_size=len(block) + 1)).schema


def _looks_like_objects(block: bytes) -> bool:
    """Whether each line begins and ends as an object. PyArrow's reader crashes, or finds rows of nulls, on others."""
    lines = map(bytes.strip, block.split(b"\n"))
    return all(line.startswith(b"{") and line.endswith(b"}") for line in lines if line)


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
    if not _looks_like_objects(block):
        raise pa.ArrowInvalid("a line that is not an object, which is still to be found")
    carriers = pa.schema([pa.field(field.name, _carrier(field.type)) for field in schema])
    table = pajson.read_json(
        io.BytesIO(block),
        pajson.ReadOptions(use_threads=False, block_size=len(block) + 1),
        pajson.ParseOptions(explicit_schema=carriers),
    )
    for field in carriers:
        if unknown_field(table.schema.field(field.name).type, field.type) is not None:
            raise pa.ArrowInvalid("an unknown field, in a line that is still to be found")
    if table.num_rows != sum(1 for line in block.split(b"\n") if line.strip()):
        raise pa.ArrowInvalid("several values in a line that is still to be found")
    table.validate(full=True)
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
    rows = _objects(block, lines_before)
    names = list(dict.fromkeys(name for row in rows for name in row))
    check_names(names, schema)
    try:
        fields = [schema.field(name) for name in names]
        columns = [from_plain([row.get(field.name) for row in rows], field) for field in fields]
        return fit(pa.record_batch(columns, schema=pa.schema(fields)), schema)
    except MisfitError as error:
        raise FlussError(f"line {lines_before + _line(block, error.row):,}, {error.message}.") from None


def _objects(block: bytes, lines_before: int) -> list[dict[str, Any]]:
    """The object of each line that is not empty; an error names the line."""
    rows: list[dict[str, Any]] = []
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
    return rows


FORMATS: Final = ("parquet", "csv", "tsv", "json", "arrow")
_OPENED_APART: Final = ("parquet", "arrow")
_BLOCK_BYTES: Final = 4 << 20
# PyArrow takes rows that reach into a second block, and no third one.
_CSV_BLOCK_BYTES: Final = 16 << 20
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
        suffixes = [suffix.lower() for suffix in self._path.suffixes if suffix.lower() not in file_process.COMPRESSIONS]
        found = _SUFFIXES.get(suffixes[-1]) if suffixes else None
        if found is None:
            raise FlussError(f"The name of {self.name} does not tell its format: say --format {'|'.join(FORMATS)}.")
        return found

    def row_count(self) -> int | None:
        """How many rows there are, where that is told without reading them."""
        if self.format != "parquet" or self._path is None:
            return None
        return file_process.row_count(self.schema())

    def schema(self) -> pa.Schema:
        """The types of the columns, as the file says or as its first rows look."""

        def read() -> pa.Schema:
            with self._opened() as opened:
                return inferred_schema(opened, _BLOCK_BYTES) if self.format == "json" else self._reader(opened).schema

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
        with self._opened() as opened:
            if self.format == "json":
                yield from read_json_lines(opened, schema, _BLOCK_BYTES)
                return
            done = 0
            for batch in self._reader(opened, schema):
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
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise FlussError(f"{self.name} can't be read as {self.format}: {reason}") from None

    def _opened(self) -> Any:
        path = STDIN if self._path is None else str(self._path)
        if self.format in _OPENED_APART:
            return file_process.opened(path, self.format)
        return file_process.uncompressed(path)

    def _reader(self, opened: Any, schema: pa.Schema | None = None) -> pa.RecordBatchReader:
        return opened if self.format in _OPENED_APART else _csv_reader(opened, self._delimiter, schema)


def _csv_reader(stream: IO[bytes], delimiter: str, schema: pa.Schema | None) -> pa.RecordBatchReader:
    """Columns of the table as texts, which are converted later; a text that is empty and not quoted is null."""
    import pyarrow.csv as pacsv

    convert = pacsv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    if schema is not None:
        convert.column_types = {name: pa.string() for name in schema.names}
        convert.null_values = [""]
    read = pacsv.ReadOptions(use_threads=False, block_size=_CSV_BLOCK_BYTES)
    parse = pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        return pacsv.open_csv(stream, read, parse, convert)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" not in str(error):
            raise
        if schema is None:
            raise FlussError("it has no rows to tell types from.") from None
        return pa.RecordBatchReader.from_batches(schema, [])


def check_inputs(files: Sequence[str], format: str | None, delimiter: str | None) -> list[Input]:
    """The files of a command, or standard input if none is named; all must be there before the first is read."""
    if delimiter is not None and len(delimiter) != 1:
        raise click.UsageError(f"--delimiter is one character, not {delimiter!r}.")
    inputs = [Input(path, format, delimiter) for path in files or (STDIN,)]
    for path in files:
        if path != STDIN and not Path(path).is_file():
            raise FlussError(f"There is no file {path}.")
    return inputs
