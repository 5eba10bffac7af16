"""Primary-key tables whose values, changelogs or keys are not in the usual format."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fluss import FlussError
from tests.compat.changelog_tables import random_value
from tests.compat.conftest import Cluster
from tests.compat.differences import OUR_CLIENT, expected
from tests.compat.users import USERS, create, few_buckets, seen, user
from tests.peers.peer import Row
from tests.peers.samples import COLUMNS, EMPTY, FULL

RecordProperty = Callable[[str, object], None]


@pytest.mark.feature("Primary keys: kv formats")
def test_indexed_values_are_read_by_all_who_can(
    cluster: Cluster, database: str, record_property: RecordProperty
) -> None:
    can = [name for name in cluster.clients if expected(name, cluster.name)["indexed_values_are_read_and_written"]]
    record_property("clients", can)
    create(cluster, OUR_CLIENT, database, "indexed", USERS, kv_format="INDEXED")
    rows = [user(number, name, number) for number, name in enumerate(can)]
    for name, row in zip(can, rows, strict=True):
        cluster.clients[name].upsert_rows(database, "indexed", [user(99, name), row])
        cluster.clients[name].upsert_rows(database, "indexed", [{"id": 99, "age": 1}], columns=["id", "age"])
    for name in can:
        client = cluster.clients[name]
        keys = [{"id": row["id"]} for row in rows]
        assert client.lookup(database, "indexed", keys) == rows
        assert client.lookup(database, "indexed", [{"id": 99}]) == [user(99, can[-1], 1)]
        assert client.limit_scan(database, "indexed", len(rows)) == rows


@pytest.mark.feature("Primary keys: log formats")
@pytest.mark.parametrize(("log_format", "kv_format"), [("COMPACTED", "COMPACTED"), ("INDEXED", "INDEXED")])
def test_changelogs_of_rows_are_read_by_all_who_can(
    cluster: Cluster, database: str, record_property: RecordProperty, log_format: str, kv_format: str
) -> None:
    clients = few_buckets(cluster)
    record_property("clients", list(clients))
    options = {"log_format": log_format, "kv_format": kv_format}
    create(cluster, OUR_CLIENT, database, "logged", {"id": "INT", **COLUMNS}, **options)
    first: Row = {"id": 1, **FULL}
    if log_format == "INDEXED" and not expected(OUR_CLIENT, cluster.name)["indexed_changelogs"]:
        with pytest.raises(FlussError):
            clients[OUR_CLIENT].upsert_rows(database, "logged", [first])
        return
    changes: list[tuple[int, str, Row]] = []
    for client in clients.values():
        client.upsert_rows(database, "logged", [first])
        client.upsert_rows(database, "logged", [{"id": 1, **EMPTY}])
        client.delete_rows(database, "logged", [{"id": 1}])
        rows = [first, first, {"id": 1, **EMPTY}, {"id": 1, **EMPTY}]
        kinds = ["+I", "-U", "+U", "-D"]
        changes += [(len(changes) + n, kind, row) for n, (kind, row) in enumerate(zip(kinds, rows, strict=True))]
    for reader, client in clients.items():
        assert seen(client.scan_records(database, "logged")) == changes, reader


@pytest.mark.feature("Primary keys: several buckets")
@pytest.mark.parametrize("lake", ["PAIMON", "ICEBERG", "LANCE"])
@pytest.mark.parametrize("kind", ["INT", "BIGINT", "STRING", "DATE", "TIMESTAMP(6)", "DECIMAL(10, 2)"])
def test_keys_of_lake_formats_are_found_by_java_and_us(
    cluster: Cluster, database: str, record_property: RecordProperty, lake: str, kind: str
) -> None:
    clients = few_buckets(cluster)
    record_property("clients", list(clients))
    rng = random.Random(kind + lake)
    create(
        cluster,
        OUR_CLIENT,
        database,
        "lake",
        {"id": kind, "name": "STRING"},
        bucket_count=5,
        properties={"table.datalake.format": lake},
    )
    values = [value for value in {random_value(rng, kind, nullable=False) for _ in range(40)} if value != ""]
    for writer, client in clients.items():
        client.upsert_rows(database, "lake", [{"id": value, "name": writer} for value in values])
        for reader, other in clients.items():
            found = other.lookup(database, "lake", [{"id": value} for value in values])
            assert found == [{"id": value, "name": writer} for value in values], (writer, reader)
    ends = clients[OUR_CLIENT].list_offsets(database, "lake")
    assert sum(ends.values()) == len(values) * (2 * len(clients) - 1)
