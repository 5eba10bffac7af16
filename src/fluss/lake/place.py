"""Which lake a table is tiered to: the one its server names, or one that is named explicitly and kept on the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fluss.lake.layout import LAKE_PROPERTIES
from fluss.lake.options import REST, LakeOptions, is_local, local_path
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.table_options import DATALAKE_ENABLED, DATALAKE_FORMAT, ICEBERG, is_true

if TYPE_CHECKING:
    from fluss.sync import FlussAdmin

_SECRET_PARTS: Final = ("password", "secret", "key", "token", "credential")


def is_tiered(info: TableInfo) -> bool:
    """Whether a table is meant to be in an Iceberg lake."""
    return is_true(info.properties, DATALAKE_ENABLED) and info.properties.get(DATALAKE_FORMAT, "").upper() == ICEBERG


def check_tiered(info: TableInfo) -> None:
    """Raise unless a table is meant to be in an Iceberg lake."""
    if is_tiered(info):
        return
    lake_format = info.properties.get(DATALAKE_FORMAT)
    if lake_format is None:
        why = f"it was made without a lake; make it with {DATALAKE_ENABLED}=true"
    elif lake_format.upper() != ICEBERG:
        why = f"its {DATALAKE_FORMAT} is {lake_format}, and this job writes iceberg"
    else:
        why = f"set its property {DATALAKE_ENABLED}=true with admin.alter_table(..., set_properties=...)"
    raise InvalidRequestError(f"{info.table_path} is not tiered: {why}.")


def named_lake(info: TableInfo, warehouse: str | None, catalog: Mapping[str, str] | None) -> LakeOptions:
    """The lake of a table, or the one that is named here, with paths that mean the same in every directory."""
    options = LakeOptions.of(info, warehouse, catalog)
    if options.type == REST:
        return options
    place = options.warehouse
    if place is not None and is_local(place):
        place = str(local_path(place).absolute())
    absolute = replace(options, warehouse=place)
    return absolute if absolute.uri is not None else replace(absolute, uri=absolute.sqlalchemy_uri)


def remember_lake(admin: FlussAdmin, info: TableInfo, options: LakeOptions) -> None:
    """Keep a lake on its table, so that readers find it; nothing happens if it is the one that the server names."""
    info = admin.get_table_info(info.table_path)  # alone has what the server says of the lake
    try:
        if _place(named_lake(info, None, None)) == _place(options):
            return
    except InvalidRequestError:
        pass  # there is none yet
    wanted = {key: value for key, value in options.table_properties().items() if not _is_secret(key)}
    others = [key for key in info.properties if key.startswith(LAKE_PROPERTIES) and key not in wanted]
    try:
        admin.alter_table(info.table_path, set_properties=wanted, reset_properties=others)
    except FlussError as error:
        if error.error_code != ErrorCode.INVALID_ALTER_TABLE_EXCEPTION:
            raise
        raise InvalidRequestError(
            f"The server of {info.table_path} has a lake of its own, {info.properties.get(LAKE_PROPERTIES + 'uri')}, "
            "and lets no table have another; leave the warehouse and catalog out."
        ) from error


def _is_secret(key: str) -> bool:
    """Properties of a table are told to everyone who may read it."""
    return any(part in key.lower() for part in _SECRET_PARTS)


def _place(options: LakeOptions) -> tuple[str | None, str | None, str]:
    """What makes a lake the same; properties are about how it is reached."""
    if options.type == REST:
        return options.uri, options.warehouse, options.name
    return options.sqlalchemy_uri, options.warehouse, options.name
