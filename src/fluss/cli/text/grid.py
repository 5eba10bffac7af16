"""Rows for people: aligned columns that fit the terminal, page by page."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import Final

import click
import pyarrow as pa
from rich.cells import cell_len, set_cell_size

from fluss.cli.text.cells import is_number, texts, visible
from fluss.model.schema import RESERVED_COLUMNS

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
