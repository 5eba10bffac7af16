"""Databases, tables, offsets and server nodes."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

import fluss
from tests.behaviour.conftest import Client

COLUMNS = [("id", pa.int32()), ("name", pa.string())]


@pytest.mark.feature("Databases")
def test_databases(client: Client) -> None:
    name = client.database + "_x"
    descriptor = fluss.DatabaseDescriptor("for tests", {"team": "web"})
    client.do(client.admin.create_database(name, descriptor))
    assert client.do(client.admin.database_exists(name))
    assert name in client.do(client.admin.list_databases())
    info = client.do(client.admin.get_database_info(name))
    assert info.database_name == name
    assert info.get_database_descriptor() == descriptor
    assert info.created_time > 0
    with pytest.raises(fluss.AlreadyExistsError):
        client.do(client.admin.create_database(name))
    client.do(client.admin.create_database(name, ignore_if_exists=True))
    client.do(client.admin.drop_database(name))
    assert not client.do(client.admin.database_exists(name))
    with pytest.raises(fluss.NotFoundError) as error:
        client.do(client.admin.drop_database(name))
    assert error.value.error_code == fluss.ErrorCode.DATABASE_NOT_EXIST
    client.do(client.admin.drop_database(name, ignore_if_not_exists=True))


@pytest.mark.feature("Databases")
def test_a_database_with_tables_is_dropped_only_with_cascade(client: Client) -> None:
    client.create("kept", COLUMNS)
    with pytest.raises(fluss.FlussError) as error:
        client.do(client.admin.drop_database(client.database, cascade=False))
    assert error.value.error_code == fluss.ErrorCode.DATABASE_NOT_EMPTY
    assert client.do(client.admin.list_tables(client.database)) == ["kept"]


@pytest.mark.feature("Tables")
def test_tables(client: Client) -> None:
    path = fluss.TablePath(client.database, "t")
    descriptor = fluss.TableDescriptor(
        fluss.Schema(pa.schema(COLUMNS)),
        bucket_count=3,
        bucket_keys=["id"],
        comment="about",
        properties={"table.log.arrow.compression.type": "LZ4_FRAME"},
        custom_properties={"owner": "me"},
    )
    assert not client.do(client.admin.table_exists(path))
    client.do(client.admin.create_table(path, descriptor))
    client.backend.await_table(path.database_name, path.table_name)
    assert client.do(client.admin.table_exists(path))
    assert client.do(client.admin.list_tables(client.database)) == ["t"]
    info = client.do(client.admin.get_table_info(path))
    assert (info.table_path, info.num_buckets, info.comment, info.schema_id) == (path, 3, "about", 1)
    assert info.get_column_names() == ["id", "name"]
    assert info.get_schema().get_column_types() == ["int", "string"]
    assert info.get_bucket_keys() == ["id"]
    assert info.get_primary_keys() == info.get_partition_keys() == []
    assert not info.has_primary_key()
    assert not info.is_partitioned()
    assert info.get_properties()["table.log.arrow.compression.type"] == "LZ4_FRAME"
    assert info.get_custom_properties() == {"owner": "me"}
    assert client.do(client.admin.get_table(path)).table_id == info.table_id
    with pytest.raises(fluss.AlreadyExistsError):
        client.do(client.admin.create_table(path, descriptor))
    client.do(client.admin.create_table(path, descriptor, ignore_if_exists=True))
    client.do(client.admin.drop_table(path))
    assert client.do(client.admin.list_tables(client.database)) == []
    with pytest.raises(fluss.NotFoundError):
        client.do(client.admin.drop_table(path))
    client.do(client.admin.drop_table(path, ignore_if_not_exists=True))


@pytest.mark.feature("Tables")
def test_a_dropped_table_comes_back_empty(client: Client) -> None:
    table = client.create("again", COLUMNS)
    client.append(table, [[1, "old"]])
    client.do(client.admin.drop_table(table.get_table_path()))
    again = client.create("again", COLUMNS)
    assert again.get_table_info().table_id != table.get_table_info().table_id
    assert client.read(again).num_rows == 0


@pytest.mark.feature("Errors that say what is missing")
def test_missing_things_are_not_found(client: Client) -> None:
    missing = fluss.TablePath(client.database, "nothing")
    for call in (client.admin.get_table_info, client.conn.get_table):
        with pytest.raises(fluss.NotFoundError, match="nothing") as error:
            client.do(call(missing))
        assert error.value.error_code == fluss.ErrorCode.TABLE_NOT_EXIST
    with pytest.raises(fluss.NotFoundError) as error:
        client.do(client.admin.list_tables(client.database + "_missing"))
    assert error.value.error_code == fluss.ErrorCode.DATABASE_NOT_EXIST
    with pytest.raises(fluss.NotFoundError):
        descriptor = fluss.TableDescriptor(fluss.Schema(pa.schema(COLUMNS)))
        client.do(client.admin.create_table(fluss.TablePath(client.database + "_missing", "t"), descriptor))


@pytest.mark.feature("Errors that say what is missing")
@pytest.mark.parametrize("name", ["../x", "a/b", "..", "__x", "a b"])
def test_bad_names_are_refused(client: Client, name: str) -> None:
    with pytest.raises(fluss.FlussError) as error:
        client.do(client.admin.create_database(name))
    assert error.value.error_code == fluss.ErrorCode.INVALID_DATABASE_EXCEPTION
    with pytest.raises(fluss.FlussError) as error:
        descriptor = fluss.TableDescriptor(fluss.Schema(pa.schema(COLUMNS)))
        client.do(client.admin.create_table(fluss.TablePath(client.database, name), descriptor))
    assert error.value.error_code == fluss.ErrorCode.INVALID_TABLE_EXCEPTION


@pytest.mark.feature("Offsets")
def test_offsets(client: Client) -> None:
    table = client.create("offsets", COLUMNS, bucket_count=2, bucket_keys=["id"])
    path = table.get_table_path()
    before_ms = int(time.time() * 1000) - 5
    client.append(table, [[i, str(i)] for i in range(20)])
    earliest = client.do(client.admin.list_offsets(path, [0, 1], fluss.OffsetSpec.earliest()))
    latest = client.do(client.admin.list_offsets(path, [0, 1], fluss.OffsetSpec.latest()))
    by_time = client.do(client.admin.list_offsets(path, [0, 1], fluss.OffsetSpec.timestamp(before_ms)))
    assert earliest == {0: 0, 1: 0} == by_time
    assert sum(latest.values()) == 20
    assert min(latest.values()) > 0, "twenty keys reach both buckets"
    assert client.do(client.admin.list_offsets(path, bucket_ids=[0], offset_type="latest")) == {0: latest[0]}
    with pytest.raises(fluss.FlussError):
        client.do(client.admin.list_offsets(path, [7], fluss.OffsetSpec.latest()))


@pytest.mark.feature("Server nodes")
def test_server_nodes(client: Client) -> None:
    nodes = client.do(client.admin.get_server_nodes())
    assert {node.server_type for node in nodes} == {"CoordinatorServer", "TabletServer"}
    assert all(node.host and node.port > 0 and node.uid[:2] in ("cs", "ts") for node in nodes)
