"""What only the Java client does, or does in its own way; the rest is in test_matrix.py and test_evolution.py."""

from __future__ import annotations

from typing import Any

import pytest

from fluss import ErrorCode
from tests.compat.conftest import WITH_JAVA, Cluster
from tests.compat.differences import APACHE, JAVA, OUR_CLIENT
from tests.peers.javaclient import JavaPeer
from tests.peers.jsonlines import PeerError
from tests.peers.samples import COLUMNS, SMALL

pytestmark = [
    pytest.mark.compat,
    pytest.mark.parametrize("cluster", [WITH_JAVA, APACHE], indirect=True, scope="module"),
]


@pytest.fixture
def java(cluster: Cluster, database: str, record_property: Any) -> JavaPeer:
    record_property("clients", [JAVA])
    peer: JavaPeer = cluster.clients[JAVA]
    return peer


@pytest.mark.feature("Databases")
def test_databases(java: JavaPeer, database: str) -> None:
    name = database + "_other"
    java.create_database(name, ignore_if_exists=False, comment="about", custom_properties={"team": "web"})
    assert java.database_info(name) == {"name": name, "comment": "about", "custom_properties": {"team": "web"}}
    assert name in java.list_databases()
    assert refused(java, "create_database", database=name, ignore_if_exists=False) == ErrorCode.DATABASE_ALREADY_EXIST
    java.drop_database(name)
    assert refused(java, "database_info", database=name) == ErrorCode.DATABASE_NOT_EXIST


@pytest.mark.feature("Tables")
def test_tables_with_every_option(cluster: Cluster, java: JavaPeer, database: str) -> None:
    properties = {"table.log.arrow.compression.type": "LZ4_FRAME"}
    options = {"bucket_count": 3, "bucket_keys": ["number"], "comment": "about", "properties": properties}
    cluster.create_table(JAVA, database, "t", COLUMNS, custom_properties={"owner": "me"}, **options)
    info = java.table_info(database, "t")
    assert info["columns"] == COLUMNS
    assert (info["bucket_count"], info["bucket_keys"], info["comment"]) == (3, ["number"], "about")
    assert info["properties"].items() >= properties.items()
    assert info["custom_properties"] == {"owner": "me"}
    arguments = {"database": database, "table": "t", "columns": SMALL}
    assert refused(java, "create_table", **arguments) == ErrorCode.TABLE_ALREADY_EXIST
    java.drop_table(database, "t")
    assert refused(java, "table_info", database=database, table="t") == ErrorCode.TABLE_NOT_EXIST
    assert java.list_tables(database) == []


@pytest.mark.feature("Partitions: created by the first row")
def test_partitions_are_made_by_the_first_row(cluster: Cluster, java: JavaPeer, database: str) -> None:
    columns = {"id": "INT", "region": "STRING"}
    cluster.create_table(JAVA, database, "dynamic", columns, partition_keys=["region"])
    rows = [{"id": number, "region": f"r{number % 3}"} for number in range(30)]
    java.append_rows(database, "dynamic", rows)
    assert java.list_partitions(database, "dynamic").keys() == {"r0", "r1", "r2"}
    for client in cluster.clients.values():
        found = client.scan_rows(database, "dynamic")
        assert sorted(found, key=lambda row: row["id"]) == rows


@pytest.mark.feature("Partitions: create, list, drop")
def test_partition_errors(cluster: Cluster, java: JavaPeer, database: str) -> None:
    cluster.create_table(JAVA, database, "t", {"id": "INT", "region": "STRING"}, partition_keys=["region"])
    place = {"database": database, "table": "t"}
    cluster.create_partition(JAVA, database, "t", {"region": "eu"})
    again = refused(java, "create_partition", spec={"region": "eu"}, **place)
    assert again == ErrorCode.PARTITION_ALREADY_EXISTS
    unknown = refused(java, "create_partition", spec={"day": "mon"}, **place)
    assert unknown == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
    missing = refused(java, "drop_partition", spec={"region": "us"}, **place)
    assert missing == ErrorCode.PARTITION_NOT_EXISTS
    partition_id = java.list_partitions(database, "t")["eu"]
    java.append_rows(database, "t", [{"id": number, "region": "eu"} for number in range(5)])
    assert [r["id"] for r in java.limit_scan(database, "t", 2, partition_id=partition_id)] == [3, 4]


@pytest.mark.feature("Alter table: columns and properties")
def test_alterations_that_are_refused(cluster: Cluster, java: JavaPeer, database: str) -> None:
    cluster.create_table(OUR_CLIENT, database, "t", SMALL)
    place = {"database": database, "table": "t"}
    assert refused(java, "alter_table", add_columns={"id": "INT"}, **place) is not None
    assert refused(java, "alter_table", add_columns={"must": "INT NOT NULL"}, **place) is not None
    assert refused(java, "alter_table", set={"table.log.format": "INDEXED"}, **place) is not None
    assert java.table_info(database, "t")["schema_id"] == 1
    java.append_rows(database, "t", [{"id": 1, "name": "still works"}])


@pytest.mark.feature("Offsets of producers")
def test_offsets_of_a_producer_are_registered_once(java: JavaPeer, database: str) -> None:
    offsets = [[1, None, 0, 5], [1, None, 1, 0], [2, 9, 0, 7]]
    assert java.call("registered_offsets", producer=database) is None
    assert java.call("register_offsets", producer=database, offsets=offsets) == "CREATED"
    assert java.call("register_offsets", producer=database, offsets=offsets[:1]) == "ALREADY_EXISTS"
    assert sorted(java.call("registered_offsets", producer=database), key=lambda item: item[:1] + item[2:]) == offsets
    java.call("delete_offsets", producer=database)
    assert java.call("registered_offsets", producer=database) is None
    wrong = refused(java, "register_offsets", producer="a/b", offsets=offsets)
    assert wrong == ErrorCode.INVALID_PRODUCER_ID_EXCEPTION


@pytest.mark.feature("Server tags")
def test_tags_of_servers(java: JavaPeer) -> None:
    unknown = refused(java, "tag_servers", servers=[77], tag="PERMANENT_OFFLINE")
    assert unknown == ErrorCode.SERVER_NOT_EXIST_EXCEPTION
    java.call("tag_servers", servers=[0], tag="PERMANENT_OFFLINE")
    other = refused(java, "tag_servers", servers=[0], tag="TEMPORARY_OFFLINE")
    assert other == ErrorCode.SEVER_TAG_ALREADY_EXIST_EXCEPTION
    absent = refused(java, "untag_servers", servers=[0], tag="TEMPORARY_OFFLINE")
    assert absent == ErrorCode.SEVER_TAG_NOT_EXIST_EXCEPTION
    java.call("untag_servers", servers=[0], tag="PERMANENT_OFFLINE")


def refused(java: JavaPeer, command: str, **arguments: Any) -> int | None:
    """The code with which a command fails."""
    with pytest.raises(PeerError) as error:
        java.call(command, **arguments)
    return error.value.code
