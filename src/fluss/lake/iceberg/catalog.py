"""The catalog of a lake in Iceberg: finds, makes and drops tables, through pyiceberg."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from filelock import FileLock

from fluss.lake.filesystem import check_place, storage_errors
from fluss.lake.format import LakeCatalog, LakeTable
from fluss.lake.iceberg.schema import iceberg_schema, lake_properties, partition_spec, sort_order
from fluss.lake.iceberg.table import IcebergBranch, IcebergTable
from fluss.lake.options import REST, LakeOptions
from fluss.model.errors import CorruptDataError, FlussError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath, name_problem

if TYPE_CHECKING:
    from fluss.lake.iceberg.guarded import GuardedCatalog

# Others who commit to a catalog in SQLite at the same moment are waited for.
_BUSY_TIMEOUT_S: Final = 30
_CATALOG_TABLES: Final = {"iceberg_tables", "iceberg_namespace_properties"}
_FORMAT_VERSION: Final = "2"


class IcebergCatalog(LakeCatalog):
    """The catalog that options name. It has no state: each call opens it anew."""

    def __init__(self, options: LakeOptions) -> None:
        self._options = options
        try:
            import pyiceberg  # noqa: F401  # whatever is done next needs it, and says so here
        except ImportError as error:
            raise FlussError("pyiceberg is not installed; install flussbett[lake].") from error

    @storage_errors()
    def load_table(self, path: TablePath) -> IcebergTable | None:
        """A table of the lake as it is now, or None where there is none."""
        from pyiceberg.exceptions import NoSuchTableError, ValidationError

        if not self._is_there:
            return None
        try:
            found = IcebergTable(open_catalog(self._options).load_table((path.database_name, path.table_name)))
        except NoSuchTableError:
            return None
        except (ValidationError, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0]
            raise CorruptDataError(f"The metadata of {path} in the lake is damaged: {reason}.") from error
        check_place(found.location, found.io_properties)
        return found

    @storage_errors()
    def ensure_table(self, info: TableInfo) -> IcebergTable:
        """The lake table of a Fluss table, made if need be, and with the columns that were added since."""
        from pyiceberg.exceptions import CommitFailedException

        found = self.load_table(info.table_path)
        if found is None:
            self._create_table(info)
            found = self.load_table(info.table_path)
            assert found is not None
        try:
            found.refuse_retries()
            found.evolve(info)
        except CommitFailedException:
            pass  # another job was faster
        found = self.load_table(info.table_path)
        assert found is not None
        found.check_fits(info)
        return found

    def _create_table(self, info: TableInfo) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        catalog, path = open_catalog(self._options), info.table_path
        schema = iceberg_schema(info)
        try:
            catalog.create_namespace((path.database_name,))
        except Exception:
            if not catalog.namespace_exists((path.database_name,)):  # another job may be making it at this moment
                raise
        try:
            catalog.create_table(
                (path.database_name, path.table_name),
                schema,
                partition_spec=partition_spec(info, schema),
                sort_order=sort_order(schema),
                properties={**lake_properties(info), "format-version": _FORMAT_VERSION},
            )
        except TableAlreadyExistsError:
            pass  # another job was faster

    def list_tables(self) -> list[TablePath]:
        """All tables of the lake's catalog that could be of a Fluss table by their names."""
        if not self._is_there:
            return []
        catalog = open_catalog(self._options)
        found = [name for space in catalog.list_namespaces() for name in catalog.list_tables(space) if len(name) == 2]
        return [TablePath(*name) for name in found if not any(map(name_problem, name))]

    def drop_table(self, path: TablePath) -> None:
        """Take a table out of the lake's catalog; its files stay. One that is not there is ignored."""
        from pyiceberg.exceptions import NoSuchTableError

        if self._is_there:
            with suppress(NoSuchTableError):
                open_catalog(self._options).drop_table((path.database_name, path.table_name))

    def tables_below(self, lake: LakeTable) -> list[IcebergTable]:
        """Other tables of the catalog whose metadata is in this one's folder, as that of a renamed table is."""
        catalog = open_catalog(self._options)
        others = (name for name in catalog.names_below(lake.location) if ".".join(name) != lake.name)
        return [IcebergTable(catalog.load_table(name)) for name in others]

    def new_branch(self, lake: LakeTable) -> IcebergBranch:
        """A new branch at the current snapshot of a table, which must have one."""
        assert isinstance(lake, IcebergTable)
        return IcebergBranch(lake)

    @property
    def _is_there(self) -> bool:
        """Whether there is a catalog; one in SQLite is not made by those who only look."""
        path = self._options.sqlite_path
        return path is None or path.exists()


def open_catalog(options: LakeOptions) -> GuardedCatalog:
    """pyiceberg's catalog; one in SQLite is made where there is none."""
    try:
        from fluss.lake.iceberg.guarded import make_catalog
    except ImportError as error:
        raise FlussError(f"{error.name} is not installed; install flussbett[lake].") from error
    path = options.sqlite_path
    if path is None:
        assert options.uri is not None
        return make_catalog(options, options.uri if options.type == REST else options.sqlalchemy_uri)
    uri = f"{options.sqlalchemy_uri}?timeout={_BUSY_TIMEOUT_S}"
    if not _is_made(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two that make the same tables at once get in each other's way.
        with FileLock(f"{path}.lock", timeout=_BUSY_TIMEOUT_S):
            with closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)) as database:
                # Readers and the one who commits do not wait for each other then; the mode stays with the file.
                database.execute("PRAGMA journal_mode = WAL")
            return make_catalog(options, uri)
    return make_catalog(options, uri)


def _is_made(path: Path) -> bool:
    """Whether a catalog in SQLite has its tables and its mode."""
    if not path.exists():
        return False
    with closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)) as database:
        [mode] = database.execute("PRAGMA journal_mode").fetchone()
        found = {name for [name] in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return bool(mode == "wal") and found >= _CATALOG_TABLES
