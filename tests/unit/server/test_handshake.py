"""What a client learns first: versions, addresses, metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.model.trust import Address
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from tests.kit.thread_server import RunningServer, Wire, WireError, create_table, path


@pytest.mark.parametrize("uvloop", [True, False])
@pytest.mark.parametrize(("client", "is_ours"), [("flussbett", True), ("test", False), ("", False)])
def test_versions_name_exactly_the_keys_that_are_served(
    tmp_path: Path, uvloop: bool, client: str, is_ours: bool
) -> None:
    """Keys that are not Apache Fluss's are named to clients of this package only."""
    with RunningServer(tmp_path, uvloop=uvloop) as server, server.connect() as wire:
        request = pb.ApiVersionsRequest(client_software_name=client, client_software_version="1")
        response = wire.call(api_keys.API_VERSIONS, request)
        served = {item.api_key: (item.min_version, item.max_version) for item in response.api_versions}
        expected = [api for api in api_keys.ALL if is_ours or api.key < 20_000]
        assert served == {api.key: (0, api.version_max) for api in expected}
        assert not response.HasField("server_type")


def test_metadata_without_tables_names_both_roles(server: RunningServer, wire: Wire) -> None:
    response = wire.call(api_keys.METADATA, pb.MetadataRequest())
    coordinator, (tablet,) = response.coordinator_server, response.tablet_servers
    assert (coordinator.host, coordinator.port) == server.address
    assert (tablet.host, tablet.port) == server.address


def test_metadata_of_a_table_has_a_leader_for_every_bucket(wire: Wire) -> None:
    table_id = create_table(wire, buckets=3)
    response = wire.call(api_keys.METADATA, pb.MetadataRequest(table_path=[path(), path()]))
    (table,) = response.table_metadata
    (tablet,) = response.tablet_servers
    assert (table.table_id, table.schema_id) == (table_id, 1)
    assert table.table_path == path()
    assert [bucket.bucket_id for bucket in table.bucket_metadata] == [0, 1, 2]
    assert all(bucket.HasField("leader_id") for bucket in table.bucket_metadata)
    assert {bucket.leader_id for bucket in table.bucket_metadata} == {tablet.node_id}


def test_advertised_address_is_told_to_clients(tmp_path: Path) -> None:
    with RunningServer(tmp_path, advertise=Address("db.example.org", 4711)) as server, server.connect() as wire:
        response = wire.call(api_keys.METADATA, pb.MetadataRequest())
        for node in (response.coordinator_server, *response.tablet_servers):
            assert (node.host, node.port) == ("db.example.org", 4711)


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (pb.MetadataRequest(table_path=[path("missing")]), 7, "fluss.missing does not exist"),
        (pb.MetadataRequest(table_path=[path("t", "missing")]), 7, "missing.t does not exist"),
        (pb.MetadataRequest(table_path=[path("../x")]), 15, "Invalid table name"),
        (pb.MetadataRequest(partitions_id=[4]), 36, "id 4"),
    ],
)
def test_metadata_errors(wire: Wire, request_: pb.MetadataRequest, code: int, text: str) -> None:
    with pytest.raises(WireError, match=text) as raised:
        wire.call(api_keys.METADATA, request_)
    assert raised.value.code == code


def test_partition_of_a_table_without_partitions(wire: Wire) -> None:
    create_table(wire)
    partition = pb.PbPhysicalTablePath(database_name="fluss", table_name="t", partition_name="p")
    with pytest.raises(WireError) as raised:
        wire.call(api_keys.METADATA, pb.MetadataRequest(partitions_path=[partition]))
    assert raised.value.code == 37


def test_security_token_is_empty(wire: Wire) -> None:
    response = wire.call(api_keys.GET_FILE_SYSTEM_SECURITY_TOKEN, pb.GetFileSystemSecurityTokenRequest())
    assert (response.schema, response.token) == ("file", b"")


def test_writer_ids_are_never_the_same(server: RunningServer, wire: Wire) -> None:
    with server.connect() as other:
        given = [
            connection.call(api_keys.INIT_WRITER, request).writer_id
            for request in (pb.InitWriterRequest(), pb.InitWriterRequest(table_path=[path("any")]))
            for connection in (wire, other)
        ]
    assert len(set(given)) == 4
