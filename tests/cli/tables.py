"""A table to look at, to repair and to break."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

import fluss
import fluss.sync

PATH: Final = fluss.TablePath("fluss", "orders")


def write_ten_batches(connection: fluss.sync.FlussConnection) -> None:
    """Create the table with one bucket, and append ten batches of ten rows."""
    descriptor = fluss.TableDescriptor(fluss.Schema(pa.schema([("id", pa.int64())])), bucket_count=1)
    connection.get_admin().create_table(PATH, descriptor)
    writer = connection.get_table(PATH).new_append().create_writer()
    for number in range(10):
        writer.write_arrow(pa.table({"id": range(number * 10, number * 10 + 10)}))
        writer.flush()
