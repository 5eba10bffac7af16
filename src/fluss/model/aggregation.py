"""How the columns of a table with the merge engine AGGREGATION combine values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.types import DataType, TypeRoot

DELIMITER: Final = "delimiter"
DELIMITER_LENGTH_MAX: Final = 256
_DELIMITER_DEFAULT: Final = ","


class AggFunctionType(StrEnum):
    """The functions; the values are the names that the protocol's JSON uses."""

    SUM = "sum"
    PRODUCT = "product"
    MAX = "max"
    MIN = "min"
    LAST_VALUE = "last_value"
    LAST_VALUE_IGNORE_NULLS = "last_value_ignore_nulls"
    FIRST_VALUE = "first_value"
    FIRST_VALUE_IGNORE_NULLS = "first_value_ignore_nulls"
    LISTAGG = "listagg"
    STRING_AGG = "string_agg"
    BOOL_AND = "bool_and"
    BOOL_OR = "bool_or"
    RBM32 = "rbm32"
    RBM64 = "rbm64"


_NUMBERS: Final = (
    TypeRoot.TINYINT,
    TypeRoot.SMALLINT,
    TypeRoot.INTEGER,
    TypeRoot.BIGINT,
    TypeRoot.FLOAT,
    TypeRoot.DOUBLE,
    TypeRoot.DECIMAL,
)
_ORDERED: Final = (
    *_NUMBERS,
    TypeRoot.CHAR,
    TypeRoot.STRING,
    TypeRoot.DATE,
    TypeRoot.TIME,
    TypeRoot.TIMESTAMP,
    TypeRoot.TIMESTAMP_LTZ,
)
_JOINING: Final = (AggFunctionType.LISTAGG, AggFunctionType.STRING_AGG)
# Functions that take columns of some types only.
_TYPES: Final = {
    AggFunctionType.SUM: _NUMBERS,
    AggFunctionType.PRODUCT: _NUMBERS,
    AggFunctionType.MAX: _ORDERED,
    AggFunctionType.MIN: _ORDERED,
    AggFunctionType.LISTAGG: (TypeRoot.STRING,),
    AggFunctionType.STRING_AGG: (TypeRoot.STRING,),
    AggFunctionType.BOOL_AND: (TypeRoot.BOOLEAN,),
    AggFunctionType.BOOL_OR: (TypeRoot.BOOLEAN,),
    AggFunctionType.RBM32: (TypeRoot.BYTES,),
    AggFunctionType.RBM64: (TypeRoot.BYTES,),
}


@dataclass(frozen=True, slots=True, init=False)
class AggFunction:
    """A function of one column, such as `AggFunction("sum")` or `AggFunction("listagg", {"delimiter": "|"})`."""

    type: AggFunctionType | str  # text: a newer server has functions that are not known here
    _parameters: tuple[tuple[str, str], ...]

    def __init__(self, type: str, parameters: Mapping[str, str] | None = None) -> None:
        self._set(type, parameters or {})
        self._check_type()

    def _set(self, name: str, parameters: Mapping[str, str]) -> None:
        name = str(name).replace("-", "_").lower().strip()
        known = AggFunctionType.__members__.get(name.upper(), name)
        object.__setattr__(self, "type", known)
        object.__setattr__(self, "_parameters", tuple(sorted(parameters.items())))

    def _check_type(self) -> None:
        if not isinstance(self.type, AggFunctionType):
            raise _bad(f"There is no aggregate function {self.type[:100]!r}; use one of {', '.join(AggFunctionType)}")

    @classmethod
    def of(cls, value: AggFunction | str) -> AggFunction:
        """The function itself, or the one of that name."""
        return value if isinstance(value, AggFunction) else cls(value)

    @property
    def parameters(self) -> dict[str, str]:
        return dict(self._parameters)

    @property
    def delimiter(self) -> str:
        """What `listagg` puts between two texts."""
        return self.parameters.get(DELIMITER, _DELIMITER_DEFAULT)

    def check(self, column: str, data_type: DataType) -> None:
        """Refuse what the function can't do (code 39)."""
        self._check_type()
        for name, value in self._parameters:
            if self.type not in _JOINING or name != DELIMITER:
                raise _bad(f"The aggregate function {self.type} of {column!r} has no parameter {name[:100]!r}")
            if not 1 <= len(value) <= DELIMITER_LENGTH_MAX:
                raise _bad(
                    f"The delimiter of {self.type} of {column!r} needs 1 to {DELIMITER_LENGTH_MAX} characters, "
                    f"not {len(value)}"
                )
        roots = _TYPES.get(AggFunctionType(self.type))
        if roots is not None and data_type.root not in roots:
            names = ", ".join(root.name for root in roots)
            raise _bad(f"The aggregate function {self.type} of {column!r} takes {names}, not {data_type}")

    def to_json(self) -> dict[str, Any]:
        """The protocol's JSON object."""
        result: dict[str, Any] = {"type": str(self.type)}
        if self._parameters:
            result["parameters"] = self.parameters
        return result

    @classmethod
    def from_json(cls, value: Any) -> AggFunction:
        """The function that a JSON object describes; `check` says whether there is one of that name."""
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            raise _bad("An aggregate function must be a JSON object with a 'type'")
        parameters = value.get("parameters") or {}
        if not isinstance(parameters, dict) or not all(isinstance(item, str) for item in parameters.values()):
            raise _bad("The parameters of an aggregate function must be a JSON object of strings")
        function = cls.__new__(cls)
        function._set(value["type"], parameters)
        return function

    def __str__(self) -> str:
        return f"{self.type}({self.parameters})" if self._parameters else str(self.type)


# What a column without a function of its own does.
DEFAULT_AGG_FUNCTION: Final = AggFunction(AggFunctionType.LAST_VALUE_IGNORE_NULLS)


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text}.", ErrorCode.INVALID_CONFIG_EXCEPTION)
