"""Names of tables and partitions as people type them; unknown ones are answered with near matches."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import click

from fluss.model.errors import FlussError, NotFoundError
from fluss.model.paths import TablePath, check_database_name, check_table_name
from fluss.model.tables.options import duration_ms

if TYPE_CHECKING:
    from fluss.model.infos import PartitionInfo
    from fluss.sync import FlussConnection, FlussTable

DATABASE_DEFAULT: Final = "fluss"
_DATABASES_SEARCHED_MAX: Final = 100


def table_path(text: str) -> TablePath:
    """`database.table`, or a plain name in the database `fluss`."""
    database, dot, table = text.partition(".")
    path = TablePath(database, table) if dot else TablePath(DATABASE_DEFAULT, text)
    check_database_name(path.database_name)
    check_table_name(path.table_name)
    return path


def open_table(connection: FlussConnection, text: str) -> FlussTable:
    """The table of a name."""
    path = table_path(text)
    try:
        return connection.get_table(path)
    except NotFoundError:
        raise missing_table(connection, path) from None


def missing_table(connection: FlussConnection, path: TablePath) -> NotFoundError:
    """That there is no such table, and what was perhaps meant."""
    admin = connection.get_admin()
    databases = admin.list_databases()
    if path.database_name not in databases:
        return missing_database(path.database_name, databases)
    tables = admin.list_tables(path.database_name)
    near = [f"{path.database_name}.{name}" for name in near_names(path.table_name, tables)]
    if not near:
        others = [name for name in databases if name != path.database_name][:_DATABASES_SEARCHED_MAX]
        near = [f"{name}.{path.table_name}" for name in others if path.table_name in admin.list_tables(name)]
    advice = suggestion(near) or f" 'fluss table list {path.database_name}' lists those there are."
    return NotFoundError(f"There is no table {path}.{advice}")


def missing_database(name: str, databases: Sequence[str]) -> NotFoundError:
    """That there is no such database, and what was perhaps meant."""
    advice = suggestion(near_names(name, databases)) or f" 'fluss database create {name}' creates it."
    return NotFoundError(f"There is no database {name}.{advice}")


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Those that look alike."""
    return difflib.get_close_matches(name, list(known), n=3)


def suggestion(names: Sequence[str]) -> str:
    return f" Did you mean {' or '.join(names)}?" if names else ""


def check_columns(table: FlussTable, names: Iterable[str]) -> list[str]:
    """Names of columns, all of which the table has."""
    known = table.get_table_info().get_column_names()
    wanted = list(names)
    for name in wanted:
        if name not in known:
            advice = suggestion(near_names(name, known)) or f" It has {', '.join(known)}."
            raise NotFoundError(f"Table {table.table_path} has no column {name!r}.{advice}")
    return wanted


def split_columns(_: click.Context, __: click.Parameter, given: str | None) -> list[str] | None:
    """The value of an option such as `--columns id,name`."""
    return None if given is None else [name.strip() for name in given.split(",") if name.strip()]


def pairs(_: click.Context, option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """The value of options and arguments such as `key=value`."""
    found = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{item!r} is not like key=value.", param=option)
        found[key] = value
    return found


def seconds(_: click.Context, option: click.Parameter, given: str | None, ms_min: int = 0) -> float | None:
    """The value of an option such as `30s` or `5d`."""
    if given is None:
        return None
    milliseconds = duration_ms(given)
    if milliseconds is None or milliseconds < ms_min:
        raise click.BadParameter(f"{given!r} is no duration like 30s or 5d.", param=option)
    return milliseconds / 1000


def key_pairs(text: str, columns: Sequence[str]) -> dict[str, str]:
    """`region=EU,id=5`: a comma separates only before the name of a column."""
    names = "|".join(re.escape(name) for name in columns)
    parts = re.split(f",(?=(?:{names})=)", text)
    found = dict(part.split("=", 1) for part in parts if "=" in part)
    if len(found) != len(parts):
        raise FlussError(f"{text!r} is no key; write it like {','.join(f'{name}=...' for name in columns)}.")
    return found


def partitions(connection: FlussConnection, table: FlussTable, names: Sequence[str] = ()) -> list[PartitionInfo]:
    """A table's partitions, by name; or those named: `2026-01-31`, `EU$2026-01-31`, or `day=2026-01-31,region=EU`."""
    info = table.get_table_info()
    if not info.is_partitioned():
        if names:
            raise FlussError(f"Table {info.table_path} has no partitions; leave --partition out.")
        return []
    found = connection.get_admin().list_partition_infos(info.table_path)
    found.sort(key=lambda partition: partition.partition_name)
    if not names:
        return found
    chosen = {}
    for name in names:
        if "=" in name:
            spec = key_pairs(name, info.partition_keys).items()
            matching = [item for item in found if spec <= item.partition_spec.get_spec_map().items()]
        else:
            matching = [item for item in found if item.partition_name == name]
        if not matching:
            near = suggestion(near_names(name, [item.partition_name for item in found]))
            advice = near or f" 'fluss partition list {info.table_path}' lists those there are."
            raise NotFoundError(f"Table {info.table_path} has no partition {name}.{advice}")
        chosen.update({item.partition_id: item for item in matching})
    return list(chosen.values())
