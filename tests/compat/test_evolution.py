"""Tables that are altered while they are in use; statistics. pyfluss 1.0.0 reads such tables but cannot alter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.compat.conftest import Cluster
from tests.compat.differences import OUR_CLIENT, PYFLUSS, expected
from tests.peers.jsonlines import PeerError
from tests.peers.peer import Row
from tests.peers.samples import SMALL

ADDED = {"score": "DOUBLE", "tags": "ARRAY<STRING>"}


@pytest.fixture
def alterers(cluster: Cluster, database: str, record_property: Callable[[str, object], None]) -> dict[str, Any]:
    """The clients that have the calls; pyfluss is no proof of them."""
    found = {name: client for name, client in cluster.clients.items() if name != PYFLUSS}
    record_property("clients", list(found))
    return found


@pytest.mark.feature("Schema evolution: reading rows of both schemas")
def test_rows_of_both_schemas_are_read_by_everyone(cluster: Cluster, database: str) -> None:
    for alterer in cluster.clients.keys() - {PYFLUSS}:
        table = f"altered_by_{alterer.replace(' ', '_')}"
        cluster.create_table(PYFLUSS, database, table, SMALL)
        written: list[Row] = []

        def write(rows: list[Row], table: str = table, written: list[Row] = written) -> None:
            for client in cluster.clients.values():
                client.append_rows(database, table, rows)
                written += [{**dict.fromkeys(ADDED), **row} for row in rows]

        write([{"id": 1, "name": "before"}, {"id": 2, "name": None}])
        cluster.clients[alterer].alter_table(database, table, add_columns=ADDED)
        # Writers that were there before know the old schema only, and their rows go on to be taken.
        write([{"id": 3, "name": "between"}])
        for client in cluster.clients.values():
            client.reopen_table(database, table)
        write([{"id": 4, "name": "after", "score": 0.5, "tags": ["a", None]}, {"id": 5, "name": "x"}])
        for reader, client in cluster.clients.items():
            assert client.scan_rows(database, table) == written, (alterer, reader)
            assert client.scan_rows(database, table, columns=["name"]) == _projected(written, ["name"])
            for columns in (["score", "id"], ["tags"]):
                if expected(reader, cluster.name)["added_column_is_projected"]:
                    found = client.scan_rows(database, table, columns=columns)
                    assert found == _projected(written, columns), (alterer, reader, columns)
                    continue
                with pytest.raises(PeerError, match=r"(?i)invalid_?column_?projection"):
                    client.scan_rows(database, table, columns=columns)


def _projected(rows: list[Row], columns: list[str]) -> list[Row]:
    return [{name: row[name] for name in columns} for row in rows]


@pytest.mark.feature("Schema evolution: reading rows of both schemas")
def test_a_scanner_keeps_the_schema_it_began_with(cluster: Cluster, database: str) -> None:
    cluster.create_table(OUR_CLIENT, database, "tailed", SMALL)
    tails = {name: client.start_tail(database, "tailed") for name, client in cluster.clients.items()}
    writer = cluster.clients[OUR_CLIENT]
    writer.append_rows(database, "tailed", [{"id": 1, "name": "before"}])
    for tail in tails.values():
        tail.take(1)
    writer.alter_table(database, "tailed", add_columns=ADDED)
    writer.append_rows(database, "tailed", [{"id": 2, "name": "after", "score": 1.5, "tags": []}])
    for reader, tail in tails.items():
        assert [record.row for record in tail.take(1)] == [{"id": 2, "name": "after"}], reader
        tail.stop()


@pytest.mark.feature("Schema evolution: reading rows of both schemas")
def test_batches_keep_their_schema_unless_it_is_fixed(cluster: Cluster, database: str) -> None:
    ours = cluster.clients[OUR_CLIENT]
    cluster.create_table(OUR_CLIENT, database, "fixed", SMALL)
    ours.append_rows(database, "fixed", [{"id": 1, "name": "before"}])
    ours.alter_table(database, "fixed", add_columns={"score": "DOUBLE"})
    ours.append_rows(database, "fixed", [{"id": 2, "name": "after", "score": 1.5}])
    for reader in (OUR_CLIENT, PYFLUSS):
        client = cluster.clients[reader]
        client.reopen_table(database, "fixed")
        fixed = client.scan_batches(database, "fixed", fixed_schema=True, count=2)
        assert [batch["columns"] for batch in fixed] == [["id", "name", "score"]] * 2, reader
        assert fixed[0]["rows"] == [{"id": 1, "name": "before", "score": None}]
        loose = client.scan_batches(database, "fixed", fixed_schema=False, count=2)
        assert [batch["columns"] for batch in loose] == [["id", "name"], ["id", "name", "score"]], reader
    assert expected(OUR_CLIENT, cluster.name)["evolved_records_by_default"]
    tail = ours.start_tail(database, "fixed")
    assert tail.take(2)[0].row == {"id": 1, "name": "before", "score": None}
    tail.stop()
    assert not expected(PYFLUSS, cluster.name)["evolved_records_by_default"]
    with pytest.raises(PeerError):
        loosely = {"columns": None, "fixed_schema": False}
        cluster.clients[PYFLUSS].call("scan_records", database=database, table="fixed", **loosely)


@pytest.mark.feature("Alter table: columns and properties")
def test_properties_are_set_and_reset(cluster: Cluster, database: str, alterers: dict[str, Any]) -> None:
    for alterer, client in alterers.items():
        table = f"properties_{alterer.replace(' ', '_')}"
        cluster.create_table(PYFLUSS, database, table, SMALL, custom_properties={"kept": "1", "gone": "2"})
        client.alter_table(database, table, set_properties={"fresh": "3"}, reset_properties=["gone"])
        found = cluster.clients[PYFLUSS].table_info(database, table)
        assert found["custom_properties"] == {"kept": "1", "fresh": "3"}, alterer
        assert found["schema_id"] == 1


@pytest.mark.feature("Table statistics")
def test_row_counts(cluster: Cluster, database: str, alterers: dict[str, Any]) -> None:
    cluster.create_table(PYFLUSS, database, "counted", SMALL, bucket_count=3, bucket_keys=["id"])
    cluster.clients[PYFLUSS].append_rows(database, "counted", [{"id": i, "name": "x"} for i in range(70)])
    columns = {"id": "INT", "region": "STRING"}
    cluster.create_table(PYFLUSS, database, "parted", columns, partition_keys=["region"])
    for region in ("eu", "us"):
        cluster.create_partition(PYFLUSS, database, "parted", {"region": region})
        cluster.clients[PYFLUSS].append_rows(database, "parted", [{"id": i, "region": region} for i in range(5)])
    for reader, client in alterers.items():
        assert client.table_stats(database, "counted") == 70, reader
        assert client.table_stats(database, "parted") == 10, reader
