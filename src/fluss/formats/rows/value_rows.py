"""How stored values become Python rows without the way through Arrow: one is read in less than a microsecond."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple, TypeAlias

from fluss.formats.rows.specs import spec_of, units_per_second
from fluss.model.errors import CorruptDataError
from fluss.model.schema import Schema
from fluss.model.types import DataType, TypeRoot

_EPOCHS: Final = {
    TypeRoot.TIMESTAMP: datetime(1970, 1, 1),
    TypeRoot.TIMESTAMP_LTZ: datetime(1970, 1, 1, tzinfo=UTC),
}
_TEXT: Final = (TypeRoot.CHAR, TypeRoot.STRING)
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_MICROS_PER_SECOND: Final = 1_000_000
_WIDE: Final = Context(prec=120)

Convert: TypeAlias = Callable[[Any], Any]


class ValueRows(NamedTuple):
    """What `kernel.decode_values` needs to know to read COMPACTED values of one schema as rows of another.

    Rows are the same as those of `row_reader.to_rows`: columns the value does not have are None. Bytes that are no
    value raise `CorruptDataError`, text that is not UTF-8 and times that Python can't hold ValueError or OverflowError.
    """

    columns: tuple[tuple[str | None, tuple[Any, ...], bool, bool, Convert | None], ...]
    nulls: dict[str, Any]


def value_rows(written: Schema, wanted: Schema) -> ValueRows:
    """Columns are matched by field id."""
    names = dict(zip(wanted.field_ids, wanted.column_names, strict=True))
    columns = []
    for field_id, column in zip(written.field_ids, written.columns, strict=True):
        kind, is_text = column.data_type, column.data_type.root in _TEXT
        columns.append((names.get(field_id), tuple(spec_of(kind)), kind.nullable, is_text, _converter(kind)))
    return ValueRows(tuple(columns), dict.fromkeys(wanted.column_names))


def is_readable(schema: Schema) -> bool:
    """Whether all columns are scalars: nested ones are read through Arrow."""
    return not any(column.data_type.is_nested for column in schema.columns)


def _converter(data_type: DataType) -> Convert | None:
    root = data_type.root
    if root is TypeRoot.DATE:
        return lambda days: date.fromordinal(days + _EPOCH_ORDINAL)
    if root is TypeRoot.DECIMAL:
        return _decimals(data_type)
    if root in (TypeRoot.TIME, *_EPOCHS):
        units = units_per_second(data_type.precision)
        if root is TypeRoot.TIME:
            return lambda count: _time(count * _MICROS_PER_SECOND // units)
        epoch = _EPOCHS[root]
        return lambda count: epoch + timedelta(0, 0, count * _MICROS_PER_SECOND // units)
    return None


def _decimals(data_type: DataType) -> Convert:
    exponent, limit = -data_type.scale, 10**data_type.precision

    def convert(unscaled: int) -> Decimal:
        if not -limit < unscaled < limit:
            raise CorruptDataError(f"rows: {unscaled} has too many digits for {data_type}")
        return _WIDE.scaleb(Decimal(unscaled), exponent)

    return convert


def _time(micros: int) -> time:
    seconds, micros = divmod(micros, _MICROS_PER_SECOND)
    minutes, seconds = divmod(seconds, 60)
    return time(minutes // 60, minutes % 60, seconds, micros)
