"""A server for the command line's tests, with a few tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import fluss.sync as fs
from fluss.model.forms.type_text import parse_schema
from fluss.testing import FlussServer

ORDERS = "id bigint not null, day string, total decimal(10,2), at timestamp_ltz(3), tags array<string>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with the tables shop.orders, shop.customers and shop.visits (by day)."""
    directory: Path = tmp_path_factory.mktemp("cli") / "data"
    with FlussServer(directory, args=["--durability", "os"]) as running:
        with fs.connect(running.bootstrap_servers) as connection:
            _fill(connection)
        yield running.bootstrap_servers


def _fill(connection: fs.FlussConnection) -> None:
    admin = connection.get_admin()
    admin.create_database("shop")
    orders = fs.TablePath("shop", "orders")
    admin.create_table(orders, fs.TableDescriptor(parse_schema(ORDERS), bucket_count=1))
    keyed = parse_schema("region string, id int, name string, primary key (region, id)")
    admin.create_table(
        fs.TablePath("shop", "customers"), fs.TableDescriptor(keyed, bucket_keys=["region"], bucket_count=2)
    )
    by_day = fs.TableDescriptor(parse_schema("id int, day string"), partition_keys=["day"], bucket_count=1)
    admin.create_table(fs.TablePath("shop", "visits"), by_day)
    admin.create_partition(fs.TablePath("shop", "visits"), {"day": "2026-01-31"})
    table = connection.get_table(orders)
    with table.new_append().create_writer() as writer:
        writer.write_arrow(order_rows(table.arrow_schema, range(5_000)))
    with connection.get_table(fs.TablePath("shop", "customers")).new_upsert().create_writer() as upserts:
        for number in range(4):
            upserts.upsert({"region": "EU" if number % 2 else "US", "id": number, "name": f"name {number}"})
    with connection.get_table(fs.TablePath("shop", "visits")).new_append().create_writer() as visits:
        visits.append({"id": 1, "day": "2026-01-31"})


def order_rows(schema: pa.Schema, ids: range) -> pa.Table:
    rows = [
        {"id": i, "day": f"2026-01-{i % 28 + 1:02}", "total": None, "at": None, "tags": ["a", "ü"] if i % 2 else None}
        for i in ids
    ]
    return pa.Table.from_pylist(rows, schema)
