"""Types and columns as SQL text: `decimal(10,2)`, `array<int>`, `id bigint not null, name string, primary key (id)`.

    columns := item (, item)*          item := name type [PRIMARY KEY] [COMMENT 'text'] | PRIMARY KEY (name, ...)
    type    := kind [NOT NULL]         kind := word [(number, ...)] | ARRAY<type> | MAP<type, type>
                                               | ROW<name [:] type [COMMENT 'text'], ...> (STRUCT is the same)

Names are written plain, `in backquotes` or "in quotes". What `str(data_type)` prints can be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.schema import Column, Schema
from fluss.model.types import NESTING_DEPTH_MAX, DataField, DataType, DataTypes, TypeRoot

TEXT_LENGTH_MAX: Final = 1_000_000

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<number>\d{1,10}(?!\w))
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>`(?:[^`]|``)+`|"(?:[^"]|"")+")
    | (?P<word>\w+)
    | (?P<symbol>[(),<>:])
    | (?P<end>$)
    )""",
    re.VERBOSE,
)
_PLAIN: Final = {
    "BOOLEAN": DataTypes.boolean(),
    "BOOL": DataTypes.boolean(),
    "TINYINT": DataTypes.tinyint(),
    "SMALLINT": DataTypes.smallint(),
    "INT": DataTypes.int(),
    "INTEGER": DataTypes.int(),
    "BIGINT": DataTypes.bigint(),
    "LONG": DataTypes.bigint(),
    "FLOAT": DataTypes.float(),
    "REAL": DataTypes.float(),
    "DOUBLE": DataTypes.double(),
    "STRING": DataTypes.string(),
    "VARCHAR": DataTypes.string(),
    "TEXT": DataTypes.string(),
    "BYTES": DataTypes.bytes(),
    "VARBINARY": DataTypes.bytes(),
    "DATE": DataTypes.date(),
}
# With numbers in parentheses: the fewest, the most, and what makes the type.
_WITH_NUMBERS: Final[dict[str, tuple[int, int, Callable[..., DataType]]]] = {
    "DECIMAL": (1, 2, lambda precision, scale=0: DataTypes.decimal(precision, scale)),
    "NUMERIC": (1, 2, lambda precision, scale=0: DataTypes.decimal(precision, scale)),
    "CHAR": (1, 1, DataTypes.char),
    "BINARY": (1, 1, DataTypes.binary),
    "TIME": (0, 1, DataTypes.time),
    "TIMESTAMP": (0, 1, DataTypes.timestamp),
    "TIMESTAMP_LTZ": (0, 1, DataTypes.timestamp_ltz),
}
_NESTED: Final = ("ARRAY", "MAP", "ROW", "STRUCT")
_NAMES: Final = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal, string, char, bytes, binary, date, time, "
    "timestamp, timestamp_ltz, array, map or row"
)
_PLAIN_NAME: Final = re.compile(r"[^\W\d]\w*\Z")


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def parse_type(text: str) -> DataType:
    """The type that a text names; errors say where in the text."""
    parser = _Parser(text, "type")
    found = parser.type()
    parser.expect_end()
    return found


def parse_schema(text: str) -> Schema:
    """The schema of a table from the text of its columns, and of its primary key if it has one."""
    parser = _Parser(text, "schema")
    schema = parser.schema()
    parser.expect_end()
    return schema


def type_text(data_type: DataType) -> str:
    """A type as text that `parse_type` reads: as `str`, with names quoted where they need it, and comments."""
    if data_type.element is not None:
        text = f"array<{type_text(data_type.element)}>"
    elif data_type.key is not None and data_type.value is not None:
        text = f"map<{type_text(data_type.key)}, {type_text(data_type.value)}>"
    elif data_type.root is TypeRoot.ROW:
        text = f"row<{', '.join(map(_field_text, data_type.fields))}>"
    else:
        return str(data_type).replace(" NOT NULL", " not null")
    return text if data_type.nullable else f"{text} not null"


def _field_text(field: DataField) -> str:
    name = field.name if _PLAIN_NAME.match(field.name) else "`" + field.name.replace("`", "``") + "`"
    comment = "" if field.description is None else " comment '" + field.description.replace("'", "''") + "'"
    return f"{name} {type_text(field.data_type)}{comment}"


class _Parser:
    """Reads one text from left to right."""

    def __init__(self, text: str, what: str) -> None:
        if len(text) > TEXT_LENGTH_MAX:
            raise _bad(f"A {what} has at most {TEXT_LENGTH_MAX} characters, not {len(text)}")
        self._text = text
        self._what = what
        self._depth = -1  # of the type that is being read; one that is not nested has 0
        self._token = self._next_token(0)

    # ---- words ----

    def _next_token(self, start: int) -> _Token:
        match = _TOKEN.match(self._text, start)
        if match is None:
            rest = self._text[start:].lstrip()
            self._fail(f"can't read {rest[:10]!r}", len(self._text) - len(rest))
        kind = str(match.lastgroup)
        self._after = match.end()
        return _Token(kind, match[kind], match.start(kind))

    def _take(self) -> _Token:
        token = self._token
        self._token = self._next_token(self._after)
        return token

    def _skip(self, *words: str) -> bool:
        """Whether these words come next; they are passed then, or an error says what is missing after the first."""
        if self._token.kind not in ("word", "symbol") or self._token.text.upper() != words[0]:
            return False
        self._take()
        for word in words[1:]:
            self._expect(word)
        return True

    def _expect(self, word: str) -> None:
        if not self._skip(word):
            self._fail(f"expected {word}")

    def expect_end(self) -> None:
        if self._token.kind != "end":
            self._fail("expected a comma or the end")

    def _fail(self, problem: str, position: int | None = None) -> NoReturn:
        if position is None:
            token = self._token
            position = token.position
            problem += ", but it ends" if token.kind == "end" else f", not {token.text!r}"
        shown = repr(self._text if len(self._text) <= 200 else self._text[:197] + "...")
        raise _bad(f"The {self._what} {shown} is wrong at position {position + 1}: {problem}")

    # ---- sentences ----

    def schema(self) -> Schema:
        columns: list[Column] = []
        primary_key: list[str] = []
        while True:
            if self._token.text.upper() == "PRIMARY" and self._token.kind == "word":
                self._add_key(primary_key, self._key_names())
            else:
                columns.append(self._column(primary_key))
            if not self._skip(","):
                return Schema.of(columns, primary_key)

    def _column(self, primary_key: list[str]) -> Column:
        name = self._name("the name of a column")
        data_type = self.type()
        if self._skip("PRIMARY", "KEY"):
            self._add_key(primary_key, [name])
        return Column(name, data_type, self._comment())

    def _key_names(self) -> list[str]:
        self._skip("PRIMARY", "KEY")
        self._expect("(")
        names = [self._name("a column")]
        while self._skip(","):
            names.append(self._name("a column"))
        self._expect(")")
        return names

    def _add_key(self, primary_key: list[str], names: list[str]) -> None:
        if primary_key:
            self._fail("there is a primary key already; write PRIMARY KEY (a, b) once", self._token.position)
        primary_key += names

    def _name(self, what: str) -> str:
        token = self._token
        if token.kind not in ("word", "quoted", "number"):
            self._fail(f"expected {what}")
        self._take()
        return token.text[1:-1].replace(token.text[0] * 2, token.text[0]) if token.kind == "quoted" else token.text

    def _comment(self) -> str | None:
        if not self._skip("COMMENT"):
            return None
        if self._token.kind != "text":
            self._fail("expected a 'text'")
        return self._take().text[1:-1].replace("''", "'")

    def type(self) -> DataType:
        self._depth += 1
        if self._depth > NESTING_DEPTH_MAX:
            self._fail(f"types are nested deeper than {NESTING_DEPTH_MAX} levels", self._token.position)
        found = self._kind()
        self._depth -= 1
        if self._skip("NOT", "NULL"):
            return found.not_null()
        self._skip("NULL")
        return found

    def _kind(self) -> DataType:
        token = self._token
        name = token.text.upper()
        if token.kind != "word" or name not in (*_PLAIN, *_WITH_NUMBERS, *_NESTED):
            self._fail(f"expected a type ({_NAMES})")
        self._take()
        if name in _PLAIN:
            return _PLAIN[name]
        if name in _WITH_NUMBERS:
            return self._with_numbers(name, token.position)
        closing = ")" if name in ("ROW", "STRUCT") and self._skip("(") else ">"
        if closing == ">":
            self._expect("<")
        if name == "ARRAY":
            found = DataTypes.array(self.type())
        elif name == "MAP":
            key = self.type()
            self._expect(",")
            found = DataTypes.map(key, self.type())
        else:
            fields = [self._field()]
            while self._skip(","):
                fields.append(self._field())
            found = DataTypes.row(fields)
        self._expect(closing)
        return found

    def _field(self) -> DataField:
        name = self._name("the name of a field")
        self._skip(":")
        data_type = self.type()
        return DataField(name, data_type, self._comment())

    def _with_numbers(self, name: str, position: int) -> DataType:
        fewest, most, make = _WITH_NUMBERS[name]
        numbers: list[int] = []
        if self._skip("("):
            numbers.append(self._number())
            while self._skip(","):
                numbers.append(self._number())
            self._expect(")")
        if not fewest <= len(numbers) <= most:
            example = {"DECIMAL": "decimal(10,2)", "NUMERIC": "numeric(10,2)"}.get(name, f"{name.lower()}(3)")
            self._fail(f"write it like {example}", position)
        try:
            return make(*numbers)
        except InvalidRequestError as error:
            self._fail(error.message.rstrip("."), position)

    def _number(self) -> int:
        if self._token.kind != "number":
            self._fail("expected a number")
        return int(self._take().text)


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text}.", ErrorCode.INVALID_TABLE_EXCEPTION)
