"""Output of commands: a table for people, JSON lines, CSV or an Arrow stream for programs (`--output`), and progress
bars.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, TypeVar

import click
import pyarrow as pa
import pyarrow.types as pt
from rich.cells import cell_len, set_cell_size

from fluss.model.errors import FlussError
from fluss.model.schema import RESERVED_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.progress import Progress


class ByteBar:
    """How many bytes are done, of how many."""

    def __init__(self, progress: Progress | None, text: str) -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task(text, total=None)

    def begin(self, text: str, total_bytes: int) -> None:
        """Begin anew."""
        if self._progress is not None and self._task is not None:
            self._progress.reset(self._task, description=text, total=total_bytes)

    def add(self, size_bytes: int) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, size_bytes)

    def set(self, done_bytes: int, total_bytes: int | None) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done_bytes, total=total_bytes)


@contextmanager
def byte_bar(text: str) -> Iterator[ByteBar]:
    """A bar that counts bytes."""
    if not sys.stderr.isatty():
        yield ByteBar(None, text)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        yield ByteBar(progress, text)


def size_text(size_bytes: float) -> str:
    """Bytes as people say them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NO_FRACTION: Final = re.compile(r"\.0+(?=Z?$)")


def plain(column: pa.Array) -> list[Any]:
    """Values that JSON knows. Bytes are hexadecimal, decimals and times text, a map with text keys is an object."""
    column = _simple(column)
    kind = column.type
    if pt.is_float16(kind) or pt.is_float32(kind):
        # By its shortest text, or 0.1 would be 0.10000000149011612.
        return [_finite(None if text is None else float(text)) for text in column.cast(pa.string()).to_pylist()]
    if pt.is_float64(kind):
        return [_finite(value) for value in column.to_pylist()]
    if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_string(kind) or pt.is_null(kind):
        values: list[Any] = column.to_pylist()
        return values
    if pt.is_binary(kind) or pt.is_fixed_size_binary(kind):
        return [None if value is None else value.hex() for value in column.to_pylist()]
    if (pt.is_temporal(kind) and not pt.is_duration(kind) and not pt.is_interval(kind)) or pt.is_decimal(kind):
        values = column.cast(pa.string()).to_pylist()
        return values
    if pt.is_map(kind) or pt.is_list(kind):
        return _lists(column)
    if pt.is_struct(kind):
        return _structs(column)
    return [None if value is None else str(value) for value in column.to_pylist()]


def texts(column: pa.Array) -> list[str | None]:
    """Text for people, without control characters; None is null."""
    kind = column.type
    if pt.is_nested(kind):
        return [None if value is None else json.dumps(value, ensure_ascii=False) for value in plain(column)]
    found = [_text(value) for value in plain(column)]
    if pt.is_timestamp(kind) and all(text is None or _NO_FRACTION.search(text) for text in found):
        return [None if text is None else _NO_FRACTION.sub("", text) for text in found]
    return found


def is_number(kind: pa.DataType) -> bool:
    """Whether values of a type are aligned to the right."""
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


def visible(text: str) -> str:
    """A text without characters that would move the cursor or colour the terminal."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else visible(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _finite(value: float | None) -> float | str | None:
    """JSON has no word for what is not a number, nor for infinity."""
    return (
        value
        if value is None or math.isfinite(value)
        else {"nan": "NaN", "inf": "Infinity"}.get(str(value), "-Infinity")
    )


def _simple(column: pa.Array) -> pa.Array:
    """The same values in a type that has one spelling."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pt.is_dictionary(kind):
        return column.dictionary_decode()
    if pt.is_large_string(kind) or pt.is_string_view(kind):
        return column.cast(pa.string())
    if pt.is_large_binary(kind) or pt.is_binary_view(kind):
        return column.cast(pa.binary())
    if pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return column.cast(pa.list_(kind.value_field))
    return column


def _lists(column: pa.Array) -> list[Any]:
    is_map = pt.is_map(column.type)
    offsets, valid = column.offsets.to_pylist(), column.is_valid().to_pylist()
    items = list(zip(plain(column.keys), plain(column.items), strict=True)) if is_map else plain(column.values)
    found: list[Any] = []
    for index, there in enumerate(valid):
        part = items[offsets[index] : offsets[index + 1]]
        if not there:
            found.append(None)
        elif is_map:
            found.append(dict(part) if all(isinstance(key, str) for key, _ in part) else [list(pair) for pair in part])
        else:
            found.append(part)
    return found


def _structs(column: pa.Array) -> list[Any]:
    names = [field.name for field in column.type]
    children = [plain(child) for child in column.flatten()]
    valid = column.is_valid().to_pylist()
    rows = zip(*children, strict=True) if children else [()] * len(column)
    return [dict(zip(names, row, strict=True)) if there else None for there, row in zip(valid, rows, strict=True)]


CELL_WIDTH_MAX: Final = 60
_CELL_WIDTH_MIN: Final = 8
# Widths are fixed by the first rows, so that what follows can be printed as it comes.
MEASURED_ROWS_MAX: Final = 1_000
# Of columns whose first rows are few, as when a table is followed.
_ROOMY_NUMBER, _ROOMY_TEXT = 8, 20
_GAP: Final = "  "
_CUT: Final = "…"


class Grid:
    """Prints batches of one schema; `flush` prints what it waits with to see how wide columns get."""

    def __init__(self, schema: pa.Schema, *, roomy: bool = False, null: str = "NULL") -> None:
        self._null = null
        self._narrowest = [_roomy_width(field) if roomy else 1 for field in schema]
        self._names = [visible(name) for name in schema.names]
        self._right = [is_number(field.type) for field in schema]
        self._waiting: list[list[str | None]] = []
        self._widths: list[int] | None = None

    @property
    def hidden_columns(self) -> int:
        """Columns for which the terminal is too narrow."""
        return len(self._names) - len(self._widths) if self._widths is not None else 0

    def write(self, batch: pa.RecordBatch) -> None:
        rows = zip(*(texts(column) for column in batch.columns), strict=True)
        self._waiting += map(list, rows)
        if self._widths is not None or len(self._waiting) >= MEASURED_ROWS_MAX:
            self.flush()

    def flush(self) -> None:
        if self._widths is None:
            self._widths = self._fitting(self._measured())
            self._print_header(self._widths)
        lines = [self._line(row, self._widths) for row in self._waiting]
        self._waiting = []
        for start in range(0, len(lines), MEASURED_ROWS_MAX):
            click.echo("\n".join(lines[start : start + MEASURED_ROWS_MAX]))

    def _measured(self) -> list[int]:
        widths = []
        for index, (name, narrowest) in enumerate(zip(self._names, self._narrowest, strict=True)):
            cells = (cell_len(self._null if row[index] is None else row[index] or "") for row in self._waiting)
            widths.append(min(max(cell_len(name), narrowest, *cells), CELL_WIDTH_MAX))
        return widths

    def _fitting(self, widths: list[int]) -> list[int]:
        """Narrower columns, the widest first, and the last ones left out, until lines fit the terminal."""
        room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        while room is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > room and len(widths) > 1:
            widest = max(widths)
            if widest > _CELL_WIDTH_MIN:
                widths[widths.index(widest)] -= 1
            else:
                widths.pop()
        return widths

    def _print_header(self, widths: Sequence[int]) -> None:
        names = self._line(self._names[: len(widths)], widths)
        click.echo(click.style(names, bold=True))
        click.echo(click.style(_GAP.join("─" * width for width in widths), dim=True))

    def _line(self, row: Sequence[str | None], widths: Sequence[int]) -> str:
        cells = []
        for text, width, right in zip(row, widths, self._right, strict=False):
            cells.append(_cell(self._null if text is None else text, width, right))
        return _GAP.join(cells).rstrip()


def _roomy_width(field: pa.Field) -> int:
    """The columns that are put before a change have values of one length."""
    if field.name in RESERVED_COLUMNS:
        return 1
    return _ROOMY_NUMBER if is_number(field.type) else _ROOMY_TEXT


def _cell(text: str, width: int, right: bool) -> str:
    if text.isascii():
        if len(text) > width:
            return text[: width - 1] + _CUT
        return text.rjust(width) if right else text.ljust(width)
    if cell_len(text) > width:
        return set_cell_size(text, width - 1).rstrip() + _CUT
    return " " * (width - cell_len(text)) + text if right else set_cell_size(text, width)


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
    """Add --limit, and -n; the command gets `limit`, None if it was not given."""
    help_text = "Most rows to print, 0 for all.  [table: 100, others: all]"
    return click.option("-n", "--limit", type=click.IntRange(0), metavar="N", help=help_text)(command)


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
