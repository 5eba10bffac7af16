"""Filters as text, in the words of SQL: `amount > 10 AND (region IN ('EU', 'US') OR name LIKE 'a%')`.

    filter    := conjunct (OR conjunct)*            conjunct := term (AND term)*
    term      := NOT term | ( filter ) | question | boolean column
    question  := column (= | == | <> | != | < | <= | > | >=) literal, or the literal first
               | column [NOT] IN (literal, ...)     | column [NOT] BETWEEN literal AND literal
               | column IS [NOT] NULL               | column [NOT] LIKE 'a%' | '%a' | '%a%' | 'a'

A column is written plain or `in backquotes`, a field of a ROW column with dots: address.city. Literals are numbers,
'text' (a quote in it is doubled), TRUE, FALSE, DATE '2026-01-31', TIME '12:30:00', TIMESTAMP '2026-01-31 12:30:00' (in
a TIMESTAMP_LTZ column UTC, if it names no zone) and X'00ff'; a text is taken as a date or time where the column is one.
NOT is carried inwards, as SQL's three-valued logic allows.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn

from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.predicates import Leaf, LeafFunction, Predicate
from fluss.model.schema import Column, Schema
from fluss.model.tables.literals import bind, find_column, opposite
from fluss.model.types import TypeRoot

TEXT_LENGTH_MAX = 100_000
DEPTH_MAX = 50

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    | (?P<bytes>[xX]'(?:[0-9a-fA-F]{2})*')
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>`(?:[^`]|``)+`)
    | (?P<word>[^\W\d]\w*(?:\.[^\W\d]\w*)*)
    | (?P<symbol><=|>=|<>|!=|==|[=<>(),+-])
    | (?P<end>$)
    )""",
    re.VERBOSE,
)
_COMPARISONS = {
    "=": LeafFunction.EQUAL,
    "==": LeafFunction.EQUAL,
    "<>": LeafFunction.NOT_EQUAL,
    "!=": LeafFunction.NOT_EQUAL,
    "<": LeafFunction.LESS_THAN,
    "<=": LeafFunction.LESS_OR_EQUAL,
    ">": LeafFunction.GREATER_THAN,
    ">=": LeafFunction.GREATER_OR_EQUAL,
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PATTERNS = {
    (False, False): LeafFunction.EQUAL,
    (False, True): LeafFunction.STARTS_WITH,
    (True, False): LeafFunction.ENDS_WITH,
    (True, True): LeafFunction.CONTAINS,
}
_WORDS = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL", "LIKE", "TRUE", "FALSE"})
_FLOATS = (TypeRoot.FLOAT, TypeRoot.DOUBLE)
# What may stand before a text, and the columns that it may be compared with; a day stands for its midnight.
_PREFIXES = {
    "DATE": (TypeRoot.DATE, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ),
    "TIME": (TypeRoot.TIME,),
    "TIMESTAMP": (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ),
}
_TIMES: dict[TypeRoot, Callable[[str], Any]] = {
    TypeRoot.DATE: dt.date.fromisoformat,
    TypeRoot.TIME: dt.time.fromisoformat,
    TypeRoot.TIMESTAMP: dt.datetime.fromisoformat,
    TypeRoot.TIMESTAMP_LTZ: lambda text: _in_utc(dt.datetime.fromisoformat(text)),
}
# Python would drop these digits without a word.
_NANOSECONDS = re.compile(r"[.,]\d{7}")


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


class _Literal(NamedTuple):
    """A value as it was written: its column decides what becomes of it."""

    value: Any
    prefix: str
    """DATE, TIME or TIMESTAMP, if it had one"""
    position: int


def parse_predicate(text: str, schema: Schema) -> Predicate:
    """A filter for a table of this schema; errors say where in the text."""
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidRequestError(f"A filter has at most {TEXT_LENGTH_MAX} characters, not {len(text)}.")
    return _Parser(text, schema).parse()


class _Parser:
    """Reads one text from left to right; `negated` says that a NOT before it turns the answer round."""

    def __init__(self, text: str, schema: Schema) -> None:
        self._text = text
        self._schema = schema
        self._columns = {column.name: column for column in schema.columns}
        self._token = self._next_token(0)
        self._depth = 0

    def parse(self) -> Predicate:
        found = self._filter(negated=False)
        if self._token.kind != "end":
            self._fail("expected AND, OR or the end")
        return found

    # ---- words ----

    def _next_token(self, start: int) -> _Token:
        match = _TOKEN.match(self._text, start)
        if match is None:
            position = start + len(self._text[start:]) - len(self._text[start:].lstrip())
            self._fail(f"can't read {self._text[position : position + 10]!r}", position)
        kind = str(match.lastgroup)
        self._after = match.end()
        return _Token(kind, match[kind], match.start(kind))

    def _take(self) -> _Token:
        token = self._token
        self._token = self._next_token(self._after)
        return token

    def _is(self, word: str) -> bool:
        return self._token.kind in ("word", "symbol") and self._token.text.upper() == word

    def _skip(self, word: str) -> bool:
        """Whether the next word is this one; it is passed then."""
        if self._is(word):
            self._take()
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._skip(word):
            self._fail(f"expected {word}")

    def _fail(self, problem: str, position: int | None = None) -> NoReturn:
        if position is None:
            token = self._token
            position = token.position
            problem += ", but it ends" if token.kind == "end" else f", not {token.text!r}"
        raise InvalidRequestError(f"The filter {self._shown()} is wrong at position {position + 1}: {problem}.")

    def _shown(self) -> str:
        return repr(self._text if len(self._text) <= 200 else self._text[:197] + "...")

    # ---- sentences ----

    def _filter(self, negated: bool) -> Predicate:
        found = self._conjunct(negated)
        while self._skip("OR"):
            right = self._conjunct(negated)
            found = found & right if negated else found | right
        return found

    def _conjunct(self, negated: bool) -> Predicate:
        found = self._term(negated)
        while self._skip("AND"):
            right = self._term(negated)
            found = found | right if negated else found & right
        return found

    def _term(self, negated: bool) -> Predicate:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"NOT and parentheses are at most {DEPTH_MAX} deep", self._token.position)
        try:
            if self._skip("NOT"):
                return self._term(not negated)
            if self._skip("("):
                found = self._filter(negated)
                self._expect(")")
                return found
            return self._question(negated)
        finally:
            self._depth -= 1

    def _question(self, negated: bool) -> Predicate:
        if self._is_literal():
            literal = self._literal()
            symbol = self._comparison()
            return self._leaf(_COMPARISONS[_MIRRORED.get(symbol, symbol)], self._column(), [literal], negated)
        column = self._column()
        if self._token.text in _COMPARISONS and self._token.kind == "symbol":
            function = _COMPARISONS[self._comparison()]
            return self._leaf(function, column, [self._literal()], negated)
        if self._skip("IS"):
            negated ^= self._skip("NOT")
            self._expect("NULL")
            return self._leaf(LeafFunction.IS_NULL, column, [], negated)
        if column.data_type.root is TypeRoot.BOOLEAN and not any(map(self._is, ("NOT", "IN", "BETWEEN", "LIKE"))):
            return self._leaf(LeafFunction.EQUAL, column, [_Literal(True, "", self._token.position)], negated)
        negated ^= self._skip("NOT")
        if self._skip("IN"):
            return self._leaf(LeafFunction.IN, column, self._list(), negated)
        if self._skip("BETWEEN"):
            return self._between(column, negated)
        if self._skip("LIKE"):
            return self._like(column, negated)
        self._fail("expected a comparison, IN, BETWEEN, LIKE or IS")

    def _comparison(self) -> str:
        if self._token.kind != "symbol" or self._token.text not in _COMPARISONS:
            self._fail("expected a comparison")
        return self._take().text

    def _list(self) -> list[_Literal]:
        self._expect("(")
        found = [self._literal()]
        while self._skip(","):
            found.append(self._literal())
        self._expect(")")
        return found

    def _between(self, column: Column, negated: bool) -> Predicate:
        low = self._leaf(LeafFunction.GREATER_OR_EQUAL, column, [self._literal()], negated)
        self._expect("AND")
        high = self._leaf(LeafFunction.LESS_OR_EQUAL, column, [self._literal()], negated)
        return low | high if negated else low & high

    def _like(self, column: Column, negated: bool) -> Predicate:
        literal = self._literal()
        pattern = literal.value
        if not isinstance(pattern, str) or literal.prefix:
            self._fail("LIKE takes a text", literal.position)
        if pattern and not pattern.strip("%") and not negated:
            return self._leaf(LeafFunction.IS_NOT_NULL, column, [], negated)
        ends = (pattern.startswith("%"), pattern.endswith("%"))
        fixed = pattern[1 if ends[0] else 0 : -1 if ends[1] else None]
        if any(character in fixed for character in "%_\\"):
            self._fail("LIKE takes '%' at the beginning and at the end only, and no '_' or '\\'", literal.position)
        return self._leaf(_PATTERNS[ends], column, [literal._replace(value=fixed)], negated)

    def _leaf(self, function: LeafFunction, column: Column, literals: list[_Literal], negated: bool) -> Predicate:
        if negated:
            function, negated = opposite(function, column.data_type.root)
        values = tuple(self._value(column, literal) for literal in literals)
        found = Predicate(Leaf(function, column.name, values, negated))
        try:
            bind(found, self._schema)
        except FlussError as error:
            self._fail(error.message.rstrip("."), literals[0].position if literals else None)
        return found

    def _column(self) -> Column:
        token = self._token
        if token.kind == "quoted":
            name = token.text[1:-1].replace("``", "`")
        elif token.kind == "word" and token.text.upper() not in _WORDS:
            name = token.text
        else:
            self._fail("expected a column")
        if name not in self._columns:
            return self._nested(name, token)
        self._take()
        return self._columns[name]

    def _nested(self, name: str, token: _Token) -> Column:
        """A field of a row column, `address.city`."""
        if name.split(".")[0] not in self._columns:
            known = ", ".join(self._columns)
            self._fail(f"the table has no column {name!r}; its columns are {known}", token.position)
        try:
            _, column, _ = find_column(name, self._schema)
        except FlussError as error:
            self._fail(error.message.rstrip("."), token.position)
        self._take()
        return column

    # ---- values ----

    def _is_literal(self) -> bool:
        token = self._token
        if token.kind == "word":
            return token.text.upper() in ("TRUE", "FALSE", "NULL") or self._has_prefix()
        return token.kind in ("number", "text", "bytes") or token.text in ("+", "-")

    def _has_prefix(self) -> bool:
        """Whether this is DATE '...', and not a column of that name."""
        following = _TOKEN.match(self._text, self._after)
        return self._token.text.upper() in _PREFIXES and following is not None and following.lastgroup == "text"

    def _literal(self) -> _Literal:
        position = self._token.position
        if self._is("NULL"):
            self._fail("a comparison with NULL never matches; ask IS NULL or IS NOT NULL", position)
        if not self._is_literal():
            self._fail("expected a value")
        if self._is("+") or self._is("-"):
            sign = self._take().text
            if self._token.kind != "number":
                self._fail("expected a number")
            return _Literal(Decimal(sign + self._take().text), "", position)
        prefix = self._take().text.upper() if self._has_prefix() else ""
        kind, text, _ = self._take()
        if kind == "number":
            return _Literal(Decimal(text), prefix, position)
        if kind == "text":
            return _Literal(text[1:-1].replace("''", "'"), prefix, position)
        if kind == "bytes":
            return _Literal(bytes.fromhex(text[2:-1]), prefix, position)
        return _Literal(text.upper() == "TRUE", prefix, position)

    def _value(self, column: Column, literal: _Literal) -> Any:
        """A literal as a value for a column; `bind` refuses what is left as it does not fit."""
        value, root = literal.value, column.data_type.root
        if literal.prefix and root not in _PREFIXES[literal.prefix]:
            self._fail(
                f"the column {column.name!r} of type {column.data_type} is not compared with a {literal.prefix}",
                literal.position,
            )
        if isinstance(value, Decimal):
            if root in _FLOATS:
                return float(value)
            # An absurd exponent must not make a number of that length.
            return int(value) if value.adjusted() < 40 and value == value.to_integral_value() else value
        if isinstance(value, str) and root in _TIMES:
            try:
                if not _NANOSECONDS.search(value):
                    return _TIMES[root](value.strip())
            except ValueError:
                pass
            self._fail(
                f"{value!r} is not a value of type {column.data_type} (microseconds are the finest)", literal.position
            )
        return value


def _in_utc(moment: dt.datetime) -> dt.datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
