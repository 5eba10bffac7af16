"""Names of things: databases, tables, buckets. Names are checked here before they touch a path or the wire."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from fluss.model.errors import ErrorCode, InvalidRequestError

NAME_LENGTH_MAX = 200
DATABASE_DEFAULT = "fluss"
_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")


def name_problem(name: object) -> str | None:
    """Why `name` can't be the name of a database or table, or None. Paths are built from names, so this is a fence."""
    if not isinstance(name, str):
        return f"it must be a string, not {type(name).__name__}"
    if not name:
        return "it must not be empty"
    if len(name) > NAME_LENGTH_MAX:
        return f"it has {len(name)} characters, the limit is {NAME_LENGTH_MAX}"
    if not _NAME.match(name):
        return "only ASCII letters, digits, '_' and '-' are allowed"
    if name.startswith("__"):
        return "names that begin with '__' are reserved"
    return None


def check_database_name(name: str) -> None:
    """Raise InvalidRequestError (code 16) unless `name` may name a database."""
    problem = name_problem(name)
    if problem:
        raise InvalidRequestError(
            f"Invalid database name {_shown(name)}: {problem}.", ErrorCode.INVALID_DATABASE_EXCEPTION
        )


def check_table_name(name: str) -> None:
    """Raise InvalidRequestError (code 15) unless `name` may name a table."""
    problem = name_problem(name)
    if problem:
        raise InvalidRequestError(f"Invalid table name {_shown(name)}: {problem}.", ErrorCode.INVALID_TABLE_EXCEPTION)


def _shown(name: object) -> str:
    text = repr(name)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True, slots=True, order=True, repr=False)
class TablePath:
    """A table's database and name."""

    database_name: str
    table_name: str

    @staticmethod
    def of(name: TablePathLike) -> TablePath:
        """The path of `"database.table"`, or of a name in the database `fluss`."""
        if isinstance(name, TablePath):
            return name
        if not isinstance(name, str):
            raise InvalidRequestError(
                f'A table is named by a TablePath, or by "database.table", not by {type(name).__name__}.'
            )
        database, dot, table = name.partition(".")
        return TablePath(database, table) if dot else TablePath(DATABASE_DEFAULT, name)

    @property
    def database(self) -> str:
        return self.database_name

    @property
    def table(self) -> str:
        return self.table_name

    def table_path_str(self) -> str:
        """`database.table`."""
        return f"{self.database_name}.{self.table_name}"

    def __str__(self) -> str:
        return self.table_path_str()

    def __repr__(self) -> str:
        return f"TablePath({self.database_name!r}, {self.table_name!r})"


TablePathLike: TypeAlias = TablePath | str


@dataclass(frozen=True, slots=True, repr=False)
class TableBucket:
    """One bucket of a table, or of one of its partitions."""

    table_id: int
    bucket: int
    partition_id: int | None = None

    @staticmethod
    def with_partition(table_id: int, partition_id: int, bucket: int) -> TableBucket:
        """A bucket of a partition."""
        return TableBucket(table_id, bucket, partition_id)

    @staticmethod
    def new_with_partition(table_id: int, partition_id: int | None, bucket_id: int) -> TableBucket:
        """A bucket of a partition, or of the table when `partition_id` is None."""
        return TableBucket(table_id, bucket_id, partition_id)

    @property
    def bucket_id(self) -> int:
        return self.bucket

    def __str__(self) -> str:
        return self.__repr__()

    def __repr__(self) -> str:
        partition = "" if self.partition_id is None else f", partition_id={self.partition_id}"
        return f"TableBucket(table_id={self.table_id}{partition}, bucket={self.bucket})"
