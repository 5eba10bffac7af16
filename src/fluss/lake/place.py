"""Which tables are tiered, and to which lake: the one their server names, or one that is named explicitly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from fluss.lake.format import FORMATS
from fluss.lake.options import REST, LakeOptions, is_lake_named, local_path, told_settings
from fluss.model.errors import InvalidRequestError, NotFoundError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.model.tables.options import DATALAKE_ENABLED, DATALAKE_FORMAT, is_true
from fluss.model.trust import Trust, is_local, warn_once

if TYPE_CHECKING:
    from fluss.sync import FlussConnection


class NoLakeError(InvalidRequestError):
    """Neither the server nor the caller says where a lake is."""


def is_tiered(info: TableInfo) -> bool:
    """Whether a table is meant to be in a lake of a format that there is."""
    return is_true(info.properties, DATALAKE_ENABLED) and info.properties.get(DATALAKE_FORMAT, "").upper() in FORMATS


def check_tiered(info: TableInfo) -> None:
    """Raise unless a table is meant to be in a lake of a format that there is."""
    if is_tiered(info):
        return
    lake_format = info.properties.get(DATALAKE_FORMAT)
    if lake_format is None:
        why = f"it was made without a lake; make it with {DATALAKE_ENABLED}=true"
    elif lake_format.upper() not in FORMATS:
        why = f"its {DATALAKE_FORMAT} is {lake_format}, and this job writes {' or '.join(FORMATS).lower()}"
    else:
        why = f"set its property {DATALAKE_ENABLED}=true with admin.alter_table(..., set_properties=...)"
    raise InvalidRequestError(f"{info.table_path} is not tiered: {why}.")


def named_lake(
    info: TableInfo | None, warehouse: str | None, catalog: Mapping[str, str] | None, trust: Trust | None = None
) -> LakeOptions:
    """The lake of a table, or the one that is named here, with paths that mean the same in every directory."""
    options = LakeOptions.of(info, warehouse, catalog, trust)
    if options.type == REST:
        return options
    place = options.warehouse
    if place is not None and is_local(place):
        place = str(local_path(place).absolute())
    absolute = replace(options, warehouse=place)
    return absolute if absolute.uri is not None else replace(absolute, uri=absolute.sqlalchemy_uri)


def find_lake(
    connection: FlussConnection, info: TableInfo | None, warehouse: str | None, catalog: Mapping[str, str] | None
) -> LakeOptions:
    """The lake that is named here, or that of the server.

    A server tells where its lake is with each table that is tiered. Of others, and of tables that were dropped, nothing
    is told, so any table that is tiered is asked for.
    """
    trust = Trust.of(connection.config)
    if not is_lake_named(warehouse, catalog) and not _says_where(info):
        info = next(filter(_says_where, table_infos(connection)), None)
        if info is None:
            raise NoLakeError(
                "The server has no table that is tiered, so it does not say where its lake is: name the warehouse. "
                "Unless its settings name another, that is the folder 'lake' of the server's data directory."
            )
    return named_lake(info, warehouse, catalog, trust)


def _says_where(info: TableInfo | None) -> bool:
    return info is not None and bool(told_settings(info))


def table_infos(connection: FlussConnection, database: str | None = None) -> Iterator[TableInfo]:
    """All tables of the server, or of a database, but for those that are dropped meanwhile."""
    admin = connection.get_admin()
    for name in admin.list_databases() if database is None else [database]:
        try:
            tables = admin.list_tables(name)
        except NotFoundError:
            continue
        for table in tables:
            try:
                yield admin.get_table_info(TablePath(name, table))
            except NotFoundError:
                continue


def warn_of_other_lake(info: TableInfo, options: LakeOptions) -> None:
    """Say that readers will not find a lake by themselves, if it is not the one that the server names."""
    try:
        if _place(named_lake(info, None, None, options.trust)) == _place(options):
            return
    except InvalidRequestError:
        pass  # there is none yet, or it is not for this client
    where = options.warehouse or options.uri
    warn_once(
        f"{info.table_path} is tiered to {where}, which is not the lake that its server names: readers have to name "
        f"it, too, unless the server's operator sets datalake.{options.format.lower()}."
        f"{'warehouse' if options.warehouse else 'uri'} in fluss.toml."
    )


def _place(options: LakeOptions) -> tuple[str | None, str | None, str]:
    """What makes a lake the same; properties are about how it is reached."""
    if options.type == REST:
        return options.uri, options.warehouse, options.name
    return options.sqlalchemy_uri, options.warehouse, options.name
