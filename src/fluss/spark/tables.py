"""Opening a table for Spark: on the driver to plan, in each task to read or write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluss.spark.source_options import SourceOptions
from fluss.spark.waiting import check_packages, note_answer, waiting_config

if TYPE_CHECKING:
    from fluss.model.infos import TableInfo
    from fluss.sync import FlussConnection, FlussTable


@dataclass(frozen=True)
class OpenTable:
    """A table and the connection it is reached through."""

    connection: FlussConnection
    table: FlussTable

    @property
    def info(self) -> TableInfo:
        return self.table.get_table_info()


@contextmanager
def open_table(options: SourceOptions, *, waits: bool = True) -> Iterator[OpenTable]:
    """Connect, look the table up, and close the connection in the end. Connections are never shipped.

    A server that is away is waited for, here and in all that the connection is used for; without `waits`, only one that
    has not answered before.
    """
    check_packages()
    # Here and not above, so that Spark can load this package to look around without loading pyarrow.
    from fluss.spark.source_options import check_directory
    from fluss.sync import FlussConnection

    config = waiting_config(options.config(), waits=waits)
    check_directory(config.bootstrap_servers)
    with FlussConnection.create(config) as connection:
        note_answer(config)
        yield OpenTable(connection, connection.get_table(options.table_path))
