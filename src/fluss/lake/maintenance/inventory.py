"""What a server and its lake have under the name of a table, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from fluss.api.lake import LakeRegistry
from fluss.lake.format import LakeTable, table_id_of
from fluss.lake.options import LakeOptions
from fluss.lake.place import find_lake, is_tiered
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, NotFoundError
from fluss.model.infos import LakeSnapshot, TableInfo
from fluss.model.paths import TablePath

if TYPE_CHECKING:
    from fluss.sync import FlussConnection


class OnServer(StrEnum):
    """What the server has under the name of a table in the lake."""

    TIERED = "tiered"  # the table, which is tiered on
    OFF = "not tiered"  # the table, which is not tiered, or not any more
    RECREATED = "recreated"  # another table, as when the one in the lake was dropped and made again
    MISSING = "missing"  # nothing


@dataclass(frozen=True)
class Inventory:
    """One table, as of now."""

    table_path: TablePath
    options: LakeOptions | None  # None: where the lake is can't be told
    info: TableInfo | None  # None: not on the server
    known: LakeSnapshot | None  # the last snapshot that the server was told of
    lake: LakeTable | None  # None: not in the lake, or it can't be read
    error: Exception | None  # why it can't be read, or why the lake is not known

    @property
    def is_damaged(self) -> bool:
        """Whether the lake's metadata is missing or broken; a storage that does not answer is neither."""
        return isinstance(self.error, FileNotFoundError | CorruptDataError)

    @property
    def on_server(self) -> OnServer:
        if self.info is None:
            return OnServer.MISSING
        if self.lake is not None and not self._is_same(self.info, self.lake):
            return OnServer.RECREATED
        return OnServer.TIERED if is_tiered(self.info) else OnServer.OFF

    def _is_same(self, info: TableInfo, lake: LakeTable) -> bool:
        """Whether the lake's table is the server's; without a snapshot that tells, it is."""
        if self.is_registered:
            return True
        tiered = lake.tiered()
        return tiered is None or table_id_of(tiered.offsets_path) in (None, info.table_id)

    @property
    def is_registered(self) -> bool:
        """Whether the lake has the snapshot that the server knows."""
        return (
            self.known is not None
            and self.lake is not None
            and self.lake.sequence_number(self.known.snapshot_id) is not None
        )


def take_inventory(
    connection: FlussConnection,
    path: TablePath,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | None = None,
    options: LakeOptions | None = None,
) -> Inventory:
    """What there is of a table. With `options` the lake need not be looked for."""
    try:
        info = connection.get_admin().get_table_info(path)
    except NotFoundError:
        info = None
    lake, failure = None, None
    try:
        options = options or find_lake(connection, info, warehouse, catalog)
        lake = options.open().load_table(path)
    except Exception as error:
        failure = error
    return Inventory(path, options, info, None if info is None else _known(connection, path), lake, failure)


def _known(connection: FlussConnection, path: TablePath) -> LakeSnapshot | None:
    try:
        return LakeRegistry(connection).latest(path)
    except FlussError as error:
        if error.error_code not in (ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION, ErrorCode.TABLE_NOT_EXIST):
            raise
        return None
