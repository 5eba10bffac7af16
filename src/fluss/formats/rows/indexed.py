"""Indexed rows: null bits, the lengths of variable columns, then the values, numbers in full width."""

from __future__ import annotations

from collections.abc import Sequence

from fluss.formats.rows.binary_rows import RowFormat
from fluss.kernels.codes import LAYOUT_INDEXED
from fluss.model.schema import Column


class IndexedFormat(RowFormat):
    """Writes and reads indexed rows of given columns.

    A CHAR(n) has n bytes of UTF-8 there, filled up with zeros: text that needs more is refused, and zeros at the end of
    a text are not kept. A TIME keeps milliseconds only.
    """

    __slots__ = ()

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__(columns, LAYOUT_INDEXED)
