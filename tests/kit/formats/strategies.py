"""Random columns of every type, with values that come back as they went in."""

from __future__ import annotations

from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from fluss.model.schema import Column
from fluss.model.types import DataField, DataType, DataTypes

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# An INDEXED row has five bytes for a CHAR(5), and zeros at its end are padding.
_CHAR_5 = _TEXT.map(lambda text: text.encode()[:5].decode(errors="ignore").rstrip("\0"))


def _integers(bits: int) -> st.SearchStrategy[Any]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _cut(microsecond: int, precision: int) -> int:
    step = int(10 ** max(6 - _unit_digits(precision), 0))
    return microsecond // step * step


def _unit_digits(precision: int) -> int:
    return next(digits for digits in (0, 3, 6, 9) if precision <= digits)


def _times(precision: int) -> st.SearchStrategy[time]:
    return st.times().map(lambda value: value.replace(microsecond=_cut(value.microsecond, precision)))


def _datetimes(precision: int, zoned: bool) -> st.SearchStrategy[datetime]:
    years = (1678, 2261) if precision > 6 else (1, 9999)
    return st.datetimes(datetime(years[0], 1, 1), datetime(years[1], 12, 31)).map(
        lambda value: value.replace(
            microsecond=_cut(value.microsecond, precision), tzinfo=UTC if zoned else None, fold=0
        )
    )


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(
        lambda unscaled: Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
    )


def values_of_types() -> list[tuple[DataType, st.SearchStrategy[Any]]]:
    """Every scalar type, parameters varied, with its values."""
    pairs: list[tuple[DataType, st.SearchStrategy[Any]]] = [
        (DataTypes.boolean(), st.booleans()),
        (DataTypes.tinyint(), _integers(8)),
        (DataTypes.smallint(), _integers(16)),
        (DataTypes.int(), _integers(32)),
        (DataTypes.bigint(), _integers(64)),
        (DataTypes.float(), st.floats(width=32, allow_nan=False)),
        (DataTypes.double(), st.floats(allow_nan=False)),
        (DataTypes.char(5), _CHAR_5),
        (DataTypes.string(), _TEXT),
        (DataTypes.binary(3), st.binary(min_size=3, max_size=3)),
        (DataTypes.bytes(), st.binary(max_size=300)),
        (DataTypes.date(), st.dates()),
    ]
    pairs += [(DataTypes.decimal(p, s), _decimals(p, s)) for p, s in ((1, 0), (18, 4), (19, 0), (38, 10), (38, 38))]
    for precision in (0, 2, 3, 6, 9):
        pairs.append((DataTypes.time(precision), _times(precision)))
        pairs.append((DataTypes.timestamp(precision), _datetimes(precision, False)))
        pairs.append((DataTypes.timestamp_ltz(precision), _datetimes(precision, True)))
    return pairs


SCALARS = values_of_types()
_CHOICES = st.integers(0, len(SCALARS) - 1)


@st.composite
def tables(
    draw: st.DrawFn, max_rows: int = 12, max_columns: int = 10, nullable: bool = True
) -> tuple[list[Column], list[tuple[Any, ...]]]:
    """Columns and rows; a tenth or so of the values is null where that is allowed."""
    chosen = [SCALARS[index] for index in draw(st.lists(_CHOICES, min_size=1, max_size=max_columns))]
    columns = [
        Column(f"c{index}", data_type if nullable else data_type.not_null())
        for index, (data_type, _) in enumerate(chosen)
    ]
    fields = [st.one_of(values, st.none()) if nullable else values for _, values in chosen]
    return columns, draw(st.lists(st.tuples(*fields), max_size=max_rows))


Typed = tuple[DataType, st.SearchStrategy[Any]]


def _or_null(typed: Typed, nullable: bool) -> Typed:
    data_type, values = typed
    return (data_type, st.one_of(values, st.none())) if nullable else (data_type.not_null(), values)


def _array_of(element: Typed) -> Typed:
    return DataTypes.array(element[0]), st.lists(element[1], max_size=5)


def _map_of(key: Typed, value: Typed) -> Typed:
    return DataTypes.map(key[0], value[0]), st.lists(st.tuples(key[1], value[1]), max_size=3)


def _row_of(fields: list[Typed]) -> Typed:
    names = [f"f{index}" for index in range(len(fields))]
    data_fields = [DataField(name, data_type) for name, (data_type, _) in zip(names, fields, strict=True)]
    values = {name: value for name, (_, value) in zip(names, fields, strict=True)}
    return DataTypes.row(data_fields), st.fixed_dictionaries(values)


@st.composite
def typed(draw: st.DrawFn, depth: int) -> Typed:
    """A type of at most this depth, null allowed or not, with its values as they are read."""
    kind = draw(st.sampled_from(["scalar", "array", "map", "row"])) if depth else "scalar"
    if kind == "array":
        made = _array_of(draw(typed(depth - 1)))
    elif kind == "map":
        made = _map_of(SCALARS[draw(_CHOICES)], draw(typed(depth - 1)))
    elif kind == "row":
        made = _row_of(draw(st.lists(typed(depth - 1), min_size=1, max_size=3)))
    else:
        made = SCALARS[draw(_CHOICES)]
    return _or_null(made, draw(st.booleans()))


@st.composite
def nested_tables(draw: st.DrawFn, max_rows: int = 6) -> tuple[list[Column], list[tuple[Any, ...]]]:
    """Columns of any type and rows."""
    chosen = draw(st.lists(typed(3), min_size=1, max_size=4))
    columns = [Column(f"c{index}", data_type) for index, (data_type, _) in enumerate(chosen)]
    return columns, draw(st.lists(st.tuples(*(values for _, values in chosen)), max_size=max_rows))


def as_stored(value: Any) -> Any:
    """Rows keep times of day as milliseconds, whatever the column's precision."""
    if isinstance(value, time):
        return value.replace(microsecond=value.microsecond // 1000 * 1000)
    if isinstance(value, dict):
        return {name: as_stored(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(as_stored(item) for item in value)
    return value


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=10),
    st.binary(max_size=10),
    st.binary(max_size=4).map(bytearray),
    st.dates(),
    st.times(),
    st.datetimes(),
    st.datetimes(timezones=st.timezones()),
    st.decimals(),
    st.complex_numbers(),
    st.lists(st.integers(), max_size=2),
)
