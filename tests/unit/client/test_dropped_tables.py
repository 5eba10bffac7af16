"""What a client keeps of tables and partitions that are dropped: nothing. The leaders and the numbers of what is."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.client.table import TableCore
from fluss.model.config import Config
from fluss.model.errors import NotFoundError
from fluss.model.partitions import PartitionSpec
from fluss.model.paths import TablePath
from fluss.protocol import messages_pb2 as pb
from fluss.testing import FlussServer
from tests.kit.client_tables import everything, make_table
from tests.kit.scripted import PATH, Refuse, ScriptedServer
from tests.unit.client.scripted_clients import client_of as scripted_client

PARTITIONED = pa.schema([("id", pa.int64()), ("region", pa.string())])


@pytest.fixture
def client(server: FlussServer) -> Iterator[ClientCore]:
    """One that knows nothing yet."""
    yield from connected(server)


@pytest.fixture
def other(server: FlussServer) -> Iterator[ClientCore]:
    yield from connected(server)


def connected(server: FlussServer) -> Iterator[ClientCore]:
    core = run(ClientCore.connect(Config({"bootstrap.servers": server.bootstrap_servers})))
    yield core
    run(core.close())


def write(table: TableCore, *ids: int) -> None:
    writer = table.append_writer()
    for number in ids:
        writer.append([number, "a", 0.5]).result(10)


def known(client: ClientCore) -> tuple[set[TablePath], set[TablePath], set[tuple[TablePath, str | None]]]:
    """Tables with leaders, tables with watched partitions, and what there are numbers for."""
    metadata = client.metadata
    queues = client.sender._queues.values()
    return set(metadata._tables), set(metadata._watched), {(queue.info.table_path, queue.partition) for queue in queues}


def test_a_table_that_the_client_drops_is_forgotten_and_others_are_not(client: ClientCore) -> None:
    kept = make_table(client)
    write(kept, 1)
    for _ in range(3):
        table = make_table(client, buckets=3)
        write(table, 1, 2, 3)
        run(client.admin.drop_table(table.info.table_path))
    path = kept.info.table_path
    assert known(client) == ({path}, set(), {(path, None)})
    write(kept, 2, 3)
    assert everything(kept)["id"].to_pylist() == [1, 2, 3]


def test_the_tables_of_a_dropped_database_are_forgotten(client: ClientCore) -> None:
    kept = make_table(client).info.table_path
    run(client.admin.create_database("short"))
    for name in ("a", "b"):
        path = TablePath("short", name)
        run(client.admin.create_table(path, run(client.table(kept)).info.descriptor))
        write(run(client.table(path)), 1)
    run(client.admin.drop_database("short"))
    assert known(client) == ({kept}, set(), set())


def test_a_table_that_somebody_else_dropped_is_forgotten_when_that_shows(client: ClientCore, other: ClientCore) -> None:
    table = make_table(client)
    writer = table.append_writer()
    writer.append([1, "a", 0.5]).result(10)
    run(other.admin.drop_table(table.info.table_path))
    with pytest.raises(NotFoundError):
        writer.append([2, "a", 0.5]).result(10)
    assert known(client) == (set(), set(), set())


@pytest.mark.parametrize("writes", [False, True])
def test_of_a_table_that_somebody_else_made_anew_the_old_one_is_forgotten(
    client: ClientCore, other: ClientCore, writes: bool
) -> None:
    table = make_table(client)
    path = table.info.table_path
    old = table.append_writer()
    old.append([1, "a", 0.5]).result(10)
    run(other.admin.drop_table(path))
    run(other.admin.create_table(path, table.info.descriptor))
    if writes:
        with pytest.raises(NotFoundError, match="made anew"):
            old.append([2, "a", 0.5]).result(10)
    new = run(client.table(path))
    assert known(client) == ({path}, set(), set())
    write(new, 3, 4)
    assert everything(new)["id"].to_pylist() == [3, 4]


def test_a_dropped_partition_is_forgotten_when_another_one_is_looked_for(client: ClientCore, other: ClientCore) -> None:
    table = make_table(client, 1, PARTITIONED, partition_keys=["region"])
    path = table.info.table_path
    writer = table.append_writer()
    for number in range(5):
        run(client.admin.create_partition(path, PartitionSpec({"region": f"r{number}"})))
        writer.append([number, f"r{number}"]).result(10)
        if number >= 2:
            run(other.admin.drop_partition(path, PartitionSpec({"region": f"r{number - 2}"})))
    run(client.metadata.refresh(path))
    assert known(client) == ({path}, {path}, {(path, "r3"), (path, "r4")})
    assert client.metadata._watched[path].names == {"r3", "r4"}
    for number in (3, 4):
        writer.append([10 + number, f"r{number}"]).result(10)


def test_a_table_that_only_seemed_to_be_gone_loses_no_row() -> None:
    """A server may lag behind. Numbers that begin anew under the same id would be taken for those of stored batches."""

    def metadata(request: pb.MetadataRequest) -> pb.MetadataResponse:
        if request.table_path:
            raise Refuse(7, "no such table")
        return server.metadata(request)

    with ScriptedServer() as server:
        client = scripted_client(server)
        writer = run(client.table(PATH)).append_writer()
        for number in range(3):
            writer.append([number, "a"]).result(10)
        server.handlers[1012] = metadata
        with pytest.raises(NotFoundError):
            run(client.metadata.refresh(PATH))
        assert known(client) == (set(), set(), set())
        server.handlers[1012] = server.metadata
        for number in range(3, 6):
            writer.append([number, "a"]).result(10)
        assert server.ids() == [0, 1, 2, 3, 4, 5]
        assert server.writers == {(0, 1): [0, 1, 2], (0, 2): [0, 1, 2]}
        run(client.close())
