"""Rows from files and standard input: Parquet, CSV, JSON lines and Arrow, in batches of a table's types."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import click
import pyarrow as pa

from fluss.cli.text.coerce import MisfitError, fit
from fluss.cli.text.json_lines import inferred_schema, read_json_lines
from fluss.model.errors import FlussError

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
    """Of a file, or of a stream."""
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
