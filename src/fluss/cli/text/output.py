"""What commands print: a table for people, JSON lines, CSV or an Arrow stream for programs (`--output`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, TypeVar

import click

from fluss.model.errors import FlussError

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS: Final = ("table", "json", "csv", "arrow")
TABLE_ROWS_DEFAULT: Final = 100
# Line by line is slow; and who reads may have enough, which is noticed at the next write.
LINES_PER_WRITE: Final = 500

Function = TypeVar("Function", bound=Callable[..., Any])


def output_option(command: Function) -> Function:
    """Add --output; the command gets `output`, one of FORMATS."""
    return click.option(
        "-o", "--output", type=click.Choice(FORMATS), default="table", help="How to print.  [default: table]"
    )(command)


def limit_option(command: Function) -> Function:
    """Add --limit; the command gets `limit`, None if it was not given."""
    return click.option(
        "--limit", type=click.IntRange(0), metavar="N", help="Most rows to print, 0 for all.  [table: 100, others: all]"
    )(command)


class Printer(Protocol):
    """Prints batches; `flush` makes all of them seen."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


@contextmanager
def printing(schema: pa.Schema, output: str, *, roomy: bool = False, null: str = "NULL") -> Iterator[Printer]:
    """A printer of batches of a schema; `roomy` leaves room for values that are longer than the first ones."""
    if output == "arrow" and sys.stdout.isatty():
        raise FlussError("An Arrow stream is not for a terminal: send it to a file or a program, or choose -o json.")
    printer: Printer = _Table(schema, roomy, null) if output == "table" else _PRINTERS[output](schema)
    yield printer
    printer.close()


def write_batches(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    output: str,
    *,
    limit: int | None = None,
    total: int | None = None,
    count_rest: bool = True,
) -> int:
    """Print batches, at most `limit` rows (None: 100 in tables, 0: all); returns how many were printed.

    The last line of a table says how many rows there are: `total`, or as many as come if the rest is counted.
    """
    row_limit = TABLE_ROWS_DEFAULT if limit is None and output == "table" else limit or None
    shown = seen = 0
    with printing(schema, output) as printer:
        for batch in batches:
            if not batch.num_rows:
                continue
            seen += batch.num_rows
            wanted = batch if row_limit is None else batch.slice(0, row_limit - shown)
            if wanted.num_rows:
                printer.write(wanted)
                shown += wanted.num_rows
            if row_limit is not None and seen > row_limit and not (count_rest and total is None and output == "table"):
                break
        printer.flush()
        if output == "table":
            there = max(total or 0, seen) if total is not None or count_rest or seen == shown else None
            _print_count(shown, there, getattr(printer, "hidden_columns", 0))
    return shown


def write_rows(schema: Sequence[tuple[str, Any]], rows: Sequence[Mapping[str, Any]], output: str) -> None:
    """Print a short list of things, all of it and without a last line: names and Arrow types, then dicts by name."""
    import pyarrow as pa

    table = pa.Table.from_pylist([dict(row) for row in rows], pa.schema(schema))
    with printing(table.schema, output, null="") as printer:
        for batch in table.to_batches():
            printer.write(batch)
        printer.flush()


def _print_count(shown: int, there: int | None, hidden_columns: int) -> None:
    noun = "row" if there == 1 else "rows"
    if there is None:
        text = f"the first {shown:,} rows; there are more (--limit 0 prints all)"
    elif there > shown:
        text = f"{shown:,} of {there:,} rows (--limit 0 prints all)"
    else:
        text = f"{there:,} {noun}"
    if hidden_columns:
        text += f"; {hidden_columns} more columns (--columns chooses, -o json has all)"
    click.echo(click.style(text, dim=True))


class _Table:
    def __init__(self, schema: pa.Schema, roomy: bool, null: str) -> None:
        from fluss.cli.text.grid import Grid

        self._grid = Grid(schema, roomy=roomy, null=null)
        self.write = self._grid.write

    @property
    def hidden_columns(self) -> int:
        return self._grid.hidden_columns

    def flush(self) -> None:
        self._grid.flush()
        sys.stdout.flush()

    def close(self) -> None:
        sys.stdout.flush()


class _Json:
    def __init__(self, schema: pa.Schema) -> None:
        self._names = schema.names

    def write(self, batch: pa.RecordBatch) -> None:
        from fluss.cli.text.cells import plain

        rows = zip(*(plain(column) for column in batch.columns), strict=True)
        lines = [json.dumps(dict(zip(self._names, row, strict=True)), ensure_ascii=False) for row in rows]
        for start in range(0, len(lines), LINES_PER_WRITE):
            click.echo("\n".join(lines[start : start + LINES_PER_WRITE]))

    def flush(self) -> None:
        sys.stdout.flush()

    close = flush


class _Csv:
    """Texts are quoted, so that an empty one and null differ."""

    def __init__(self, schema: pa.Schema) -> None:
        import pyarrow as pa
        import pyarrow.csv as pacsv

        self._stream: IO[bytes] = sys.stdout.buffer
        self._schema = pa.schema([pa.field(field.name, _csv_type(field.type)) for field in schema])
        self._writer = pacsv.CSVWriter(self._stream, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        from fluss.cli.text.cells import texts

        columns = [
            column if column.type == field.type else pa.array(texts(column), field.type)
            for column, field in zip(batch.columns, self._schema, strict=True)
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._writer.close()
        self._stream.flush()


def _csv_type(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa
    import pyarrow.types as pt

    plain_enough = pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_floating(kind) or pt.is_string(kind)
    return kind if plain_enough else pa.string()


class _Arrow:
    def __init__(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        self._stream: IO[bytes] = sys.stdout.buffer
        self._writer = pa.ipc.new_stream(self._stream, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._writer.close()
        self._stream.flush()


_PRINTERS: Final[dict[str, Callable[[pa.Schema], Printer]]] = {
    "json": _Json,
    "csv": _Csv,
    "arrow": _Arrow,
}
