"""Data types of table columns, and as the protocol's JSON, both ways, with a bound on how deep JSON is nested.

The bound holds for all JSON that somebody else wrote. Python reads, writes and compares nested values by recursion:
what is nested a thousand deep is an error of the interpreter somewhere later, far from the text that was wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from fluss.model.errors import ErrorCode, InvalidRequestError

DECIMAL_PRECISION_MAX = 38
TIME_PRECISION_MAX = 9
LENGTH_MAX = 2**31 - 1
# Levels of types within types. Types, their rows and their Arrow arrays are handled by recursion.
NESTING_DEPTH_MAX = 32


class TypeRoot(StrEnum):
    """Kinds of types; the values are the names that the protocol's JSON uses."""

    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INTEGER = "INTEGER"
    BIGINT = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    CHAR = "CHAR"
    STRING = "STRING"
    BINARY = "BINARY"
    BYTES = "BYTES"
    DECIMAL = "DECIMAL"
    DATE = "DATE"
    TIME = "TIME_WITHOUT_TIME_ZONE"
    TIMESTAMP = "TIMESTAMP_WITHOUT_TIME_ZONE"
    TIMESTAMP_LTZ = "TIMESTAMP_WITH_LOCAL_TIME_ZONE"
    ARRAY = "ARRAY"
    MAP = "MAP"
    ROW = "ROW"


WITH_LENGTH = (TypeRoot.CHAR, TypeRoot.BINARY)
WITH_PRECISION = (TypeRoot.TIME, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
NESTED = (TypeRoot.ARRAY, TypeRoot.MAP, TypeRoot.ROW)

# How a type is written for people; a precision equal to the default here is left out.
_SQL_NAMES = {
    TypeRoot.INTEGER: "int",
    TypeRoot.TIME: "time",
    TypeRoot.TIMESTAMP: "timestamp",
    TypeRoot.TIMESTAMP_LTZ: "timestamp_ltz",
}
_DEFAULT_PRECISION = {TypeRoot.TIME: 0, TypeRoot.TIMESTAMP: 6, TypeRoot.TIMESTAMP_LTZ: 6}


@dataclass(frozen=True, slots=True)
class DataField:
    """A named field of a ROW type."""

    name: str
    data_type: DataType
    description: str | None = None


@dataclass(frozen=True, slots=True)
class DataType:
    """One column type. Fields that a kind does not use stay at their defaults, so equality is structural."""

    root: TypeRoot
    nullable: bool = True
    length: int = 0
    precision: int = 0
    scale: int = 0
    element: DataType | None = None  # ARRAY
    key: DataType | None = None  # MAP
    value: DataType | None = None  # MAP
    fields: tuple[DataField, ...] = ()  # ROW
    depth: int = field(init=False, compare=False, repr=False)  # levels of types within types; 0 of a plain one

    def __post_init__(self) -> None:
        within = [part for part in (self.element, self.key, self.value) if part is not None]
        within += [inner.data_type for inner in self.fields]
        depth = 1 + max((part.depth for part in within), default=-1)
        if depth > NESTING_DEPTH_MAX:
            raise too_deep()
        object.__setattr__(self, "depth", depth)
        problem = self._problem()
        if problem:
            raise InvalidRequestError(f"{self.root.name} {problem}.", ErrorCode.INVALID_TABLE_EXCEPTION)

    def _problem(self) -> str | None:
        if self.root in WITH_LENGTH and not 1 <= self.length <= LENGTH_MAX:
            return f"needs a length from 1 to {LENGTH_MAX}, not {self.length}"
        if self.root in WITH_PRECISION and not 0 <= self.precision <= TIME_PRECISION_MAX:
            return f"needs a precision from 0 to {TIME_PRECISION_MAX}, not {self.precision}"
        if self.root is TypeRoot.DECIMAL:
            if not 1 <= self.precision <= DECIMAL_PRECISION_MAX:
                return f"needs a precision from 1 to {DECIMAL_PRECISION_MAX}, not {self.precision}"
            if not 0 <= self.scale <= self.precision:
                return f"needs a scale from 0 to its precision {self.precision}, not {self.scale}"
        return None

    def not_null(self) -> DataType:
        """The same type without null."""
        return replace(self, nullable=False)

    @property
    def is_nested(self) -> bool:
        return self.root in NESTED

    def __str__(self) -> str:
        return self._text() + ("" if self.nullable else " NOT NULL")

    def _text(self) -> str:
        name = _SQL_NAMES.get(self.root, self.root.value.lower())
        if self.root in WITH_LENGTH:
            return f"{name}({self.length})"
        if self.root in WITH_PRECISION:
            return name if self.precision == _DEFAULT_PRECISION[self.root] else f"{name}({self.precision})"
        if self.root is TypeRoot.DECIMAL:
            return f"{name}({self.precision},{self.scale})"
        if self.root is TypeRoot.ARRAY:
            return f"{name}<{self.element}>"
        if self.root is TypeRoot.MAP:
            return f"{name}<{self.key},{self.value}>"
        if self.root is TypeRoot.ROW:
            inner = ", ".join(f"{field.name}: {field.data_type}" for field in self.fields)
            return f"{name}<{inner}>"
        return name


def too_deep() -> InvalidRequestError:
    """The error for a type that is nested too deep."""
    return InvalidRequestError(
        f"Types are nested deeper than {NESTING_DEPTH_MAX} levels.", ErrorCode.INVALID_TABLE_EXCEPTION
    )


class DataTypes:
    """Makes data types; all are nullable until `.not_null()`."""

    @staticmethod
    def boolean() -> DataType:
        return DataType(TypeRoot.BOOLEAN)

    @staticmethod
    def tinyint() -> DataType:
        return DataType(TypeRoot.TINYINT)

    @staticmethod
    def smallint() -> DataType:
        return DataType(TypeRoot.SMALLINT)

    @staticmethod
    def int() -> DataType:
        return DataType(TypeRoot.INTEGER)

    @staticmethod
    def bigint() -> DataType:
        return DataType(TypeRoot.BIGINT)

    @staticmethod
    def float() -> DataType:
        return DataType(TypeRoot.FLOAT)

    @staticmethod
    def double() -> DataType:
        return DataType(TypeRoot.DOUBLE)

    @staticmethod
    def string() -> DataType:
        return DataType(TypeRoot.STRING)

    @staticmethod
    def bytes() -> DataType:
        return DataType(TypeRoot.BYTES)

    @staticmethod
    def date() -> DataType:
        return DataType(TypeRoot.DATE)

    @staticmethod
    def time(precision: _int = 0) -> DataType:
        return DataType(TypeRoot.TIME, precision=precision)

    @staticmethod
    def timestamp(precision: _int = 6) -> DataType:
        return DataType(TypeRoot.TIMESTAMP, precision=precision)

    @staticmethod
    def timestamp_ltz(precision: _int = 6) -> DataType:
        return DataType(TypeRoot.TIMESTAMP_LTZ, precision=precision)

    @staticmethod
    def decimal(precision: _int, scale: _int) -> DataType:
        return DataType(TypeRoot.DECIMAL, precision=precision, scale=scale)

    @staticmethod
    def char(length: _int) -> DataType:
        return DataType(TypeRoot.CHAR, length=length)

    @staticmethod
    def binary(length: _int) -> DataType:
        return DataType(TypeRoot.BINARY, length=length)

    @staticmethod
    def array(element: DataType) -> DataType:
        return DataType(TypeRoot.ARRAY, element=element)

    @staticmethod
    def map(key: DataType, value: DataType) -> DataType:
        return DataType(TypeRoot.MAP, key=key.not_null(), value=value)

    @staticmethod
    def row(fields: list[DataField]) -> DataType:
        return DataType(TypeRoot.ROW, fields=tuple(fields))


# The factory's methods shadow the builtins of the same names inside the class body.
_int = int


# A type that is nested as deep as types may be takes three levels of JSON for each of its own.
DEPTH_MAX: Final = 128


def parse_json(text: str | bytes) -> Any:
    """The value that a text spells; ValueError says why it can't be read."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """ValueError for a value that is nested too deep."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"it is nested deeper than {DEPTH_MAX} levels")


def type_to_json(data_type: DataType, field_ids: Iterator[int] | None = None) -> dict[str, Any]:
    """The JSON object of a type. `field_ids` numbers nested ROW fields depth first, from the schema's own counter."""
    result: dict[str, Any] = {"type": data_type.root.value}
    if not data_type.nullable:
        result["nullable"] = False
    if data_type.root in WITH_LENGTH:
        result["length"] = data_type.length
    elif data_type.root in WITH_PRECISION:
        result["precision"] = data_type.precision
    elif data_type.root is TypeRoot.DECIMAL:
        result["precision"] = data_type.precision
        result["scale"] = data_type.scale
    elif data_type.root is TypeRoot.ARRAY and data_type.element:
        result["element_type"] = type_to_json(data_type.element, field_ids)
    elif data_type.root is TypeRoot.MAP and data_type.key and data_type.value:
        result["key_type"] = type_to_json(data_type.key, field_ids)
        result["value_type"] = type_to_json(data_type.value, field_ids)
    elif data_type.root is TypeRoot.ROW:
        result["fields"] = [_field_to_json(field, field_ids) for field in data_type.fields]
    return result


def _field_to_json(field: DataField, field_ids: Iterator[int] | None) -> dict[str, Any]:
    result: dict[str, Any] = {"name": field.name}
    field_id = None if field_ids is None else next(field_ids)
    result["field_type"] = type_to_json(field.data_type, field_ids)
    if field.description is not None:
        result["description"] = field.description
    if field_id is not None:
        result["field_id"] = field_id
    return result


def type_from_json(value: Any, depth: int = 0) -> DataType:
    """The type that a JSON object describes; InvalidRequestError (code 15) says what is wrong with it."""
    if depth > NESTING_DEPTH_MAX:
        raise too_deep()
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise _bad("A data type must be a JSON object with a 'type'")
    try:
        root = TypeRoot(value["type"])
    except ValueError:
        raise _bad(f"Unknown data type {value['type']!r}") from None
    return DataType(
        root,
        nullable=value.get("nullable", True) is not False,
        length=_number(value, "length") if root in WITH_LENGTH else 0,
        precision=_number(value, "precision") if root in (*WITH_PRECISION, TypeRoot.DECIMAL) else 0,
        scale=_number(value, "scale") if root is TypeRoot.DECIMAL else 0,
        element=type_from_json(value.get("element_type"), depth + 1) if root is TypeRoot.ARRAY else None,
        key=type_from_json(value.get("key_type"), depth + 1).not_null() if root is TypeRoot.MAP else None,
        value=type_from_json(value.get("value_type"), depth + 1) if root is TypeRoot.MAP else None,
        fields=_fields_from_json(value.get("fields"), depth) if root is TypeRoot.ROW else (),
    )


def _fields_from_json(value: Any, depth: int) -> tuple[DataField, ...]:
    if not isinstance(value, list):
        raise _bad("A ROW type needs a list of 'fields'")
    fields = []
    for item in value:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise _bad("A field of a ROW type must be a JSON object with a 'name'")
        fields.append(
            DataField(
                item["name"], type_from_json(item.get("field_type"), depth + 1), optional_text(item, "description")
            )
        )
    return tuple(fields)


def optional_text(value: dict[str, Any], key: str) -> str | None:
    """The string under a key of a JSON object, None without one."""
    text = value.get(key)
    if text is not None and not isinstance(text, str):
        raise _bad(f"{key!r} must be a string, not {text!r}")
    return text


def text_list(value: dict[str, Any], key: str) -> list[str]:
    """The strings under a key of a JSON object, none without it."""
    items = value.get(key)
    if items is None:
        return []
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise _bad(f"{key!r} must be a list of column names, not {items!r}")
    return items


def _number(value: dict[str, Any], key: str) -> int:
    number = value.get(key)
    if not isinstance(number, int) or isinstance(number, bool):
        raise _bad(f"{value['type']} needs an integer {key!r}")
    return number


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text}.", ErrorCode.INVALID_TABLE_EXCEPTION)
