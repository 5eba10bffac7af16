"""SQL statements that write: DuckDB runs them on a table of its own, and what this has then goes to the server's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa

from fluss.lake.union.reader import quoted
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.paths import TablePath
from fluss.model.schema import Schema
from fluss.sync import FlussConnection, FlussTable

WORD: Final = r'(?:"(?:[^"]|"")+"|[\w$]+)'
NAME: Final = re.compile(rf"({WORD})(?:\s*\.\s*({WORD}))?")
_SHADOW: Final = "__target"
# The word behind which a statement of a type names what it writes, and how else to do what is not done here.
_BEFORE_NAME: Final = {
    "INSERT": "INTO",
    "UPDATE": "UPDATE",
    "DELETE": "FROM",
    "CREATE": "TABLE",
    "DROP": "TABLE",
    "ALTER": "TABLE",
    "COPY": "COPY",
    "MERGE_INTO": "INTO",
}
_INSTEAD: Final = {
    "DROP": "'fluss table drop {0}' drops it",
    "ALTER": "'fluss table alter {0}' alters it",
    "COPY": "'fluss append {0} FILE' or 'fluss upsert {0} FILE' reads files",
    "MERGE_INTO": "INSERT INTO a table with a primary key updates the rows that it has",
    "TRUNCATE": "'fluss table drop {0}' drops it with its rows",
}
_DATABASES: Final = {"CREATE": "'fluss database create' creates databases", "DROP": "'fluss database drop' drops them"}
_BESIDE_NAME: Final = frozenset({"IF", "NOT", "EXISTS"})
_OWN: Final = frozenset({"TEMP", "TEMPORARY", "VIEW", "MACRO", "FUNCTION", "TYPE", "SEQUENCE", "INDEX", "SECRET"})
_KEY_VALUE_WORDS: Final = frozenset({"DATE", "TIME", "TIMESTAMP", "TRUE", "FALSE", "CAST"})
_KEY_VALUE_OPERATORS: Final = frozenset({"(", ")", ",", "::", "-", "+", "."})


class Token(NamedTuple):
    """A word or sign of a statement; keywords in capitals, names as they are written."""

    kind: str
    text: str
    start: int
    depth: int


class Statement:
    """A statement as DuckDB's parser has it. Positions are those of its bytes."""

    def __init__(self, duckdb: Any, kind: str, query: str) -> None:
        self.kind = kind
        self.query = query
        self.path: TablePath | None = None
        self._bytes = query.encode()
        self.tokens = list(self._tokens(duckdb))
        words = [token.text for token in self.tokens if token.depth == 0 and token.kind in ("keyword", "identifier")]
        self.words = [word.upper() for word in words]
        if self.words[:1] == ["TRUNCATE"]:
            self.kind = "TRUNCATE"

    def _tokens(self, duckdb: Any) -> Iterator[Token]:
        found = [(start, str(kind).rpartition(".")[2]) for start, kind in duckdb.tokenize(self.query)]
        depth = 0
        for (start, kind), (end, _) in pairwise([*found, (len(self._bytes), "")]):
            text = self._bytes[start:end].decode().strip()
            if kind == "operator":
                depth -= text.startswith((")", "]"))
            if kind != "comment":
                yield Token(kind, text.upper() if kind == "keyword" else text, start, depth)
            if kind == "operator":
                depth += text.startswith(("(", "["))

    def target(self) -> re.Match[str] | None:
        """The name of the table that is written, where one is."""
        before = {"TRUNCATE": "TRUNCATE"}.get(self.kind) or _BEFORE_NAME.get(self.kind)
        if before is None or before not in self.words:
            return None
        if self.kind in ("CREATE", "DROP") and not _OWN.isdisjoint(self.words[: self.words.index(before)]):
            return None
        if self.kind == "COPY" and "FROM" not in self.words:
            return None
        place = self._after(before)
        return None if place is None else NAME.match(self._bytes[place:].decode())

    def _after(self, word: str) -> int | None:
        texts = [token.text.upper() if token.depth == 0 else "" for token in self.tokens]
        if word not in texts:
            return None
        rest = self.tokens[texts.index(word) + 1 :]
        skipped = _BESIDE_NAME | {"TABLE"}
        return next((token.start for token in rest if token.text not in skipped), None)

    def check_done_here(self, path: TablePath) -> None:
        """Raise for a statement that does something to a table which is not done here."""
        if self.kind in _INSTEAD:
            text = f"SQL here is SELECT, INSERT, UPDATE, DELETE and CREATE TABLE: {_INSTEAD[self.kind].format(path)}."
            raise FlussError(text)

    def on(self, path: TablePath) -> str:
        """The statement with DuckDB's table in the place of the one that it writes."""
        self.path = path
        match = self.target()
        assert match is not None
        start = self._after(_BEFORE_NAME[self.kind])
        end = (start or 0) + len(match[0].encode())
        return (self._bytes[:start] + _shadow(path).encode() + self._bytes[end:]).decode()

    def column(self, line: int, column: int) -> int:
        """Where a column of a line of the text with DuckDB's table is in the statement."""
        match = self.target() if self.path is not None else None
        if match is None or self.path is None:
            return column
        before = self._bytes[: self._after(_BEFORE_NAME[self.kind])].decode()
        first = len(before) - before.rfind("\n")
        moved = line == before.count("\n") + 1 and column > first
        return column - (len(_shadow(self.path)) - len(match[0])) if moved else column

    def key(self, columns: Sequence[str]) -> dict[str, str]:
        """The expressions to which WHERE compares each column of a key."""
        found: dict[str, str] = {}
        for left, value in self._equalities():
            name = next((column for column in columns if column.lower() == left.lower()), None)
            if name is not None:
                found.setdefault(name, value)
        if set(found) != set(columns):
            wanted = " AND ".join(f"{column} = ?" for column in columns)
            raise FlussError(f"{self.kind} takes one row, by its whole key: WHERE {wanted}.")
        return found

    def _equalities(self) -> Iterator[tuple[str, str]]:
        """Names and values of the conditions that WHERE joins with AND, as far as they are `name = value`."""
        top = [token.text if token.depth == 0 else "" for token in self.tokens]
        others = {token.text for token in self.tokens[2:] if token.kind == "keyword"}
        if "WHERE" not in top or others & {"SELECT", "FROM", "USING", "OR"}:
            return
        where = top.index("WHERE")
        ends = [index for index in range(where, len(top)) if top[index] in ("AND", "RETURNING", ";")]
        for begin, end in pairwise([where, *ends, len(top)]):
            part = self.tokens[begin + 1 : end]
            equals = next((index for index, token in enumerate(part) if token.text == "="), 0)
            value = part[equals + 1 :]
            if equals and value and all(_is_plain(token) for token in value if token.depth == 0):
                stop = self.tokens[end].start if end < len(top) else len(self._bytes)
                left = self._bytes[part[0].start : part[equals].start].decode().strip()
                yield unquoted(left.rpartition(".")[2]), self._bytes[value[0].start : stop].decode()


def _is_plain(token: Token) -> bool:
    if token.kind == "keyword":
        return token.text in _KEY_VALUE_WORDS
    return token.kind != "operator" or token.text in _KEY_VALUE_OPERATORS


def unquoted(word: str) -> str:
    """A name as it is, without the quotes of SQL."""
    return word[1:-1].replace('""', '"') if word.startswith('"') else word


class SqlWriter:
    """Runs statements that write, each on a table of DuckDB's that stands for the server's."""

    def __init__(self, connection: FlussConnection, duck: Any) -> None:
        self._connection = connection
        self._duck = duck

    def run(self, statement: Statement, path: TablePath) -> pa.RecordBatchReader:
        """What DuckDB answers, after the server has the rows."""
        match statement.kind:
            case "CREATE":
                return self._create(statement, path)
            case "INSERT":
                return self._insert(statement, path)
        return self._change(statement, path)

    def _create(self, statement: Statement, path: TablePath) -> pa.RecordBatchReader:
        admin = self._connection.get_admin()
        if admin.table_exists(path) and "EXISTS" in statement.words:
            return _no_rows()
        if "REPLACE" in statement.words[:3]:
            raise FlussError(f"Tables are not replaced: 'fluss table drop {path}' drops the one there is.")
        self._clear()
        self._execute(statement, path)
        rows, keys = self._rows(path), self._keys()
        schema = pa.schema([field.with_nullable(field.name not in keys[1]) for field in rows.schema])
        admin.create_table(path, TableDescriptor(Schema(schema, primary_keys=keys[0] or None)))
        try:
            _write(self._connection.get_table(path), rows)
        except BaseException:
            admin.drop_table(path, ignore_if_not_exists=True)
            raise
        return _count(rows.num_rows) if "AS" in statement.words else _no_rows()

    def _keys(self) -> tuple[list[str], set[str]]:
        """The primary key's columns, and those that are not null."""
        query = (
            f"SELECT constraint_type, constraint_column_names FROM duckdb_constraints() WHERE schema_name = '{_SHADOW}'"
        )
        found = self._duck.execute(query).fetchall()
        primary = [name for kind, names in found if kind == "PRIMARY KEY" for name in names]
        return primary, {name for kind, names in found if kind == "NOT NULL" for name in names} | set(primary)

    def _insert(self, statement: Statement, path: TablePath) -> pa.RecordBatchReader:
        table = self._connection.get_table(path)
        self._stand_in(path, table.arrow_schema.empty_table())
        result = self._execute(statement, path)
        _write(table, self._rows(path))
        return result

    def _change(self, statement: Statement, path: TablePath) -> pa.RecordBatchReader:
        table = self._connection.get_table(path)
        if not table.has_primary_key():
            raise FlussError(f"Table {path} has no primary key: its rows can't be changed or deleted.")
        key = self._key(statement, table)
        row = table.new_lookup().create_lookuper().lookup(key)
        before = pa.Table.from_pylist([] if row is None else [row], table.arrow_schema)
        self._stand_in(path, before)
        result = self._execute(statement, path)
        after = self._rows(path).cast(before.schema)
        if after.select(list(key)) != before.select(list(key)) and after.num_rows:
            raise InvalidRequestError(
                f"UPDATE can't change the key ({', '.join(key)}): insert a row, and delete the old."
            )
        if after == before:
            return result
        with table.new_upsert().create_writer() as writer:
            if after.num_rows:
                writer.write_arrow(after)
            else:
                writer.delete(key)
        return result

    def _key(self, statement: Statement, table: FlussTable) -> dict[str, Any]:
        """The values of the key, in the types of its columns."""
        names = table.get_table_info().primary_keys
        given = statement.key(names)
        empty = self._duck.from_arrow(table.arrow_schema.empty_table())
        types = dict(zip(empty.columns, map(str, empty.types), strict=True))
        values = ", ".join(f"CAST(({given[name]}) AS {types[name]})" for name in names)
        found = self._duck.execute(f"SELECT {values}").fetchone()
        return dict(zip(names, found, strict=True))

    def _stand_in(self, path: TablePath, rows: pa.Table) -> None:
        """Make DuckDB's table, with these rows."""
        self._clear()
        self._duck.register(_SHADOW, rows)
        self._duck.execute(f"CREATE TABLE {_shadow(path)} AS FROM {quoted(_SHADOW)}")
        self._duck.unregister(_SHADOW)
        for field in rows.schema:
            if not field.nullable:
                self._duck.execute(f"ALTER TABLE {_shadow(path)} ALTER {quoted(field.name)} SET NOT NULL")

    def _clear(self) -> None:
        self._duck.execute(f"DROP SCHEMA IF EXISTS {_SHADOW} CASCADE")
        self._duck.execute(f"CREATE SCHEMA {_SHADOW}")

    def _execute(self, statement: Statement, path: TablePath) -> pa.RecordBatchReader:
        relation = self._duck.sql(statement.on(path))
        return _no_rows() if relation is None else _read(relation).to_reader()

    def _rows(self, path: TablePath) -> pa.Table:
        return _read(self._duck.sql(f"FROM {_shadow(path)}"))


def check_no_database(statement: Statement) -> None:
    """Raise for statements that make or drop databases."""
    if statement.kind in _DATABASES and statement.words[1:2] in (["SCHEMA"], ["DATABASE"]):
        raise FlussError(f"SQL here makes and drops no databases: {_DATABASES[statement.kind]}.")


def _shadow(path: TablePath) -> str:
    return f"{_SHADOW}.{quoted(path.table_name)}"


def _write(table: FlussTable, rows: pa.Table) -> None:
    if not rows.num_rows:
        return
    if table.has_primary_key():
        with table.new_upsert().create_writer() as upserts:
            upserts.write_arrow(rows)
    else:
        with table.new_append().create_writer() as appends:
            appends.write_arrow(rows)


def _read(relation: Any) -> pa.Table:
    return pa.RecordBatchReader.from_stream(relation).read_all()


def _count(count: int) -> pa.RecordBatchReader:
    return pa.table({"Count": [count]}).to_reader()


def _no_rows() -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(pa.schema([]), [])
