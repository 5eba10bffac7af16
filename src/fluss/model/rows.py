"""Rows by position, with typed getters."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterable
from typing import Any, TypeVar

from fluss.model.errors import InvalidRequestError, SchemaMismatchError

_T = TypeVar("_T")
_Text = TypeVar("_Text", str, bytes)
_INT_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


class InternalRow(list[Any]):
    """A row's values in column order. Getters check the type: the wrong one is a SchemaMismatchError."""

    def is_null_at(self, idx: int) -> bool:
        """Whether a field is null."""
        return self._at(idx) is None

    def get_boolean(self, idx: int) -> bool:
        """A BOOLEAN field."""
        return self._typed(idx, bool, "boolean")

    def get_byte(self, idx: int) -> int:
        """A TINYINT field."""
        return self._integer(idx, "tinyint")

    def get_short(self, idx: int) -> int:
        """A SMALLINT field."""
        return self._integer(idx, "smallint")

    def get_int(self, idx: int) -> int:
        """An INT field."""
        return self._integer(idx, "int")

    def get_long(self, idx: int) -> int:
        """A BIGINT field."""
        return self._integer(idx, "bigint")

    def get_float(self, idx: int) -> float:
        """A FLOAT field."""
        return self._typed(idx, float, "float")

    def get_double(self, idx: int) -> float:
        """A DOUBLE field."""
        return self._typed(idx, float, "double")

    def get_string(self, idx: int) -> str:
        """A STRING field."""
        return self._typed(idx, str, "string")

    def get_char(self, idx: int, length: int) -> str:
        """A CHAR(length) field."""
        return self._sized(idx, self._typed(idx, str, f"char({length})"), length)

    def get_bytes(self, idx: int) -> bytes:
        """A BYTES field."""
        return self._typed(idx, bytes, "bytes")

    def get_binary(self, idx: int, length: int) -> bytes:
        """A BINARY(length) field."""
        return self._sized(idx, self._typed(idx, bytes, f"binary({length})"), length)

    def get_decimal(self, idx: int, precision: int, scale: int) -> decimal.Decimal:
        """A DECIMAL(precision, scale) field, with that many digits after the point."""
        value = self._typed(idx, decimal.Decimal, f"decimal({precision},{scale})")
        with decimal.localcontext() as context:
            context.prec = precision
            try:
                return value.quantize(decimal.Decimal(1).scaleb(-scale))
            except decimal.InvalidOperation:
                raise SchemaMismatchError(
                    f"Field {idx} is {value}, which decimal({precision},{scale}) can't hold."
                ) from None

    def get_date(self, idx: int) -> dt.date:
        """A DATE field."""
        value = self._typed(idx, dt.date, "date")
        if isinstance(value, dt.datetime):
            raise self._mismatch(idx, value, "date")
        return value

    def get_time(self, idx: int) -> dt.time:
        """A TIME field."""
        return self._typed(idx, dt.time, "time")

    def get_timestamp_ntz(self, idx: int, precision: int = 6) -> dt.datetime:
        """A TIMESTAMP(precision) field: a datetime without time zone."""
        value = self._typed(idx, dt.datetime, f"timestamp({precision})")
        if value.tzinfo is not None:
            raise self._mismatch(idx, value, f"timestamp({precision})")
        return value

    def get_timestamp_ltz(self, idx: int, precision: int = 6) -> dt.datetime:
        """A TIMESTAMP_LTZ(precision) field: a datetime with time zone."""
        value = self._typed(idx, dt.datetime, f"timestamp_ltz({precision})")
        if value.tzinfo is None:
            raise self._mismatch(idx, value, f"timestamp_ltz({precision})")
        return value

    def _at(self, idx: int) -> Any:
        if not 0 <= idx < len(self):
            raise InvalidRequestError(f"The row has fields 0 to {len(self) - 1}, not {idx}.")
        return self[idx]

    def _typed(self, idx: int, kind: type[_T], expected: str) -> _T:
        value = self._at(idx)
        if not isinstance(value, kind):
            raise self._mismatch(idx, value, expected)
        return value

    def _integer(self, idx: int, expected: str) -> int:
        value = self._typed(idx, int, expected)
        bound = 1 << (_INT_BITS[expected] - 1)
        if isinstance(value, bool) or not -bound <= value < bound:
            raise self._mismatch(idx, value, expected)
        return value

    def _sized(self, idx: int, value: _Text, length: int) -> _Text:
        if len(value) > length:
            raise SchemaMismatchError(f"Field {idx} has length {len(value)}, {length} was asked for.")
        return value

    def _mismatch(self, idx: int, value: object, expected: str) -> SchemaMismatchError:
        given = "null" if value is None else f"{type(value).__name__} {value!r}"
        return SchemaMismatchError(f"Field {idx} is {given}, not a {expected}.")


class GenericRow(InternalRow):
    """A row to fill by position and hand to a writer: `GenericRow(3)`, then `set_field(0, value)`."""

    def __init__(self, field_count: int = 0) -> None:
        super().__init__([None] * field_count)

    @classmethod
    def from_data(cls, data: Iterable[Any]) -> GenericRow:
        """A row of these values."""
        row = cls()
        row.extend(data)
        return row

    def set_field(self, pos: int, value: Any) -> None:
        """Set a field."""
        self._at(pos)
        self[pos] = value

    def __reduce__(self) -> tuple[Any, ...]:
        return GenericRow.from_data, (list(self),)

    def __repr__(self) -> str:
        return f"GenericRow({list(self)!r})"
