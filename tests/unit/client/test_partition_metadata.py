"""Finding partitions, against a server whose answers the test decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.client.scan.table_read import existing_partitions
from fluss.model.config import Config
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import ErrorCode, FlussError, NotFoundError, TimeoutError
from fluss.model.offsets import OffsetSpec
from fluss.model.schema import Schema
from fluss.protocol import messages_pb2 as pb
from tests.kit.scripted import PATH, TABLE_ID, Refuse, ScriptedServer
from tests.kit.thread_server import eventually

METADATA, PRODUCE, LIST_PARTITIONS, CREATE_PARTITION = 1012, 1014, 1009, 1036


class PartitionedServer(ScriptedServer):
    """As a real one: one missing partition fails the whole question, and rows are stored by partition id."""

    def __init__(self) -> None:
        schema = Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
        super().__init__(TableDescriptor(schema, bucket_count=1, partition_keys=["name"]))
        self.partitions: dict[str, int] = {}
        self.leaderless: set[str] = set()
        self.slow_to_learn = 0
        self.bucket_counts: dict[str, int] = {}
        self.handlers |= {LIST_PARTITIONS: self.list_partitions, CREATE_PARTITION: self.create_partition}

    def metadata(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        answer = super().metadata(request)
        names = [item.partition_name for item in request.partitions_path]
        by_id = {partition_id: name for name, partition_id in self.partitions.items()}
        if names and self.slow_to_learn:
            self.slow_to_learn -= 1
            raise Refuse(36, "not here yet")
        for partition_id in request.partitions_id:
            if partition_id not in by_id:
                raise Refuse(36, f"no partition {partition_id}")
            names.append(by_id[partition_id])
        for name in names:
            if name not in self.partitions:
                raise Refuse(36, f"no partition {name}")
            item = answer.partition_metadata.add(
                table_id=TABLE_ID, partition_name=name, partition_id=self.partitions[name]
            )
            item.bucket_metadata.add(bucket_id=0, **({} if name in self.leaderless else {"leader_id": 0}))
            if name in self.bucket_counts:
                item.bucket_count_actual = self.bucket_counts[name]
        return answer

    def list_partitions(self, _: pb.ListPartitionInfosRequest) -> pb.ListPartitionInfosResponse:
        answer = pb.ListPartitionInfosResponse()
        for name, partition_id in self.partitions.items():
            item = answer.partitions_info.add(partition_id=partition_id)
            item.partition_spec.partition_key_values.add(key="name", value=name)
            if name in self.bucket_counts:
                item.bucket_count_actual = self.bucket_counts[name]
        return answer

    def create_partition(self, request: pb.CreatePartitionRequest) -> pb.CreatePartitionResponse:
        (pair,) = request.partition_spec.partition_key_values
        self.partitions[pair.value] = 100 + len(self.partitions)
        return pb.CreatePartitionResponse()

    def produce(self, request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        answer = pb.ProduceLogResponse()
        for item in request.buckets_req:
            bucket = answer.buckets_resp.add(bucket_id=item.bucket_id, partition_id=item.partition_id)
            if item.partition_id not in self.partitions.values():
                bucket.error_code = 21
                continue
            self.logs.setdefault(item.partition_id, [])
            error_code = self.store(item.partition_id, item.records)
            if error_code:
                bucket.error_code = error_code
        return answer


@pytest.fixture
def server() -> Iterator[PartitionedServer]:
    scripted = PartitionedServer()
    with scripted:
        yield scripted


def client_of(server: ScriptedServer, **settings: Any) -> ClientCore:
    options = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    return run(ClientCore.connect(Config({"bootstrap.servers": server.address, **options})))


def test_many_new_partitions_take_few_questions(server: PartitionedServer) -> None:
    server.partitions = {f"p{number}": number for number in range(50)}
    writer = run(client_of(server).table(PATH)).append_writer()
    before = server.count(METADATA)
    names = [f"p{number % 50}" for number in range(500)]
    writer.write_batch(pa.record_batch({"id": list(range(500)), "name": names}))
    run(writer.flush())
    assert server.count(METADATA) - before <= 2
    assert server.ids(7) == list(range(7, 500, 50))
    assert server.count(PRODUCE) == 1


def test_a_missing_partition_is_asked_for_once_and_others_are_found(server: PartitionedServer) -> None:
    server.partitions = {"here": 1}
    writer = run(client_of(server).table(PATH)).append_writer()
    before = server.count(METADATA)
    writer.append([1, "gone"])
    writer.append([2, "here"])
    with pytest.raises(NotFoundError, match="'gone'"):
        run(writer.flush())
    assert server.ids(1) == [2]
    assert server.count(METADATA) - before <= 3
    assert server.count(LIST_PARTITIONS) == 1


def test_a_server_that_has_not_heard_of_a_partition_yet_is_asked_again(server: PartitionedServer) -> None:
    server.partitions, server.slow_to_learn = {"new": 1}, 5
    writer = run(client_of(server).table(PATH)).append_writer()
    writer.append([1, "new"]).result(10)
    assert server.ids(1) == [1]


def test_a_leader_that_never_comes_ends_with_the_delivery_timeout(server: PartitionedServer) -> None:
    server.partitions, server.leaderless = {"p": 1, "q": 2}, {"p"}
    writer = run(client_of(server, writer__delivery_timeout_ms=500).table(PATH)).append_writer()
    lost, kept = writer.append([1, "p"]), writer.append([2, "q"])
    with pytest.raises(TimeoutError, match=r"partition 'p' of table db\.t.*delivery-timeout"):
        lost.result(10)
    kept.result(10)


def test_batches_move_to_the_partition_that_has_the_name_now(server: PartitionedServer) -> None:
    server.partitions = {"p": 1}
    writer = run(client_of(server, writer__batch_timeout_ms=0).table(PATH)).append_writer()
    for number in range(3):
        writer.append([number, "p"]).result(10)
    server.partitions = {"p": 2}
    for number in range(3, 9):
        writer.append([number, "p"])
    run(writer.flush())
    assert server.ids(1) == [0, 1, 2]
    assert server.ids(2) == list(range(3, 9))


def test_a_partition_is_made_once_for_many_rows(server: PartitionedServer) -> None:
    client = client_of(server, writer__dynamic_create_partition__enabled=True)
    writer = run(client.table(PATH)).append_writer()
    writer.write_batch(pa.record_batch({"id": list(range(10)), "name": ["new"] * 10}))
    run(writer.flush())
    assert server.count(CREATE_PARTITION) == 1
    assert server.ids(server.partitions["new"]) == list(range(10))


def test_a_dropped_partition_that_is_read_does_not_disturb_others(server: PartitionedServer) -> None:
    server.partitions = {"read": 1, "written": 2}
    client = client_of(server)
    writer = run(client.table(PATH)).append_writer()
    client.metadata.watch_partitions(PATH, [1])
    writer.append([1, "written"]).result(10)
    assert not client.metadata.is_gone(PATH, 1)
    del server.partitions["read"]
    run(client.metadata.refresh(PATH))
    assert client.metadata.is_gone(PATH, 1)
    assert client.metadata.leader(PATH, 1, 0) is None
    writer.append([2, "written"]).result(10)
    assert server.ids(2) == [1, 2]


def test_rows_are_never_placed_in_a_partition_of_another_size(server: PartitionedServer) -> None:
    server.partitions, server.bucket_counts = {"same": 1, "larger": 2, "untold": 3}, {"same": 1, "larger": 4}
    client = client_of(server)
    table = run(client.table(PATH))
    writer = table.append_writer()
    for name in ("same", "untold"):
        writer.append([1, name]).result(10)
    with pytest.raises(FlussError, match="has 4 buckets and not 1 like the table") as caught:
        writer.append([2, "larger"]).result(10)
    assert caught.value.error_code == ErrorCode.INVALID_BUCKET_ROUTING
    assert (server.ids(1), server.ids(3), 2 in server.logs) == ([1], [1], False)
    assert [item.bucket_count for item in run(client.admin.list_partition_infos(PATH))] == [1, 4, None]
    for read in (existing_partitions(client.cluster, table.info), table.bucket_offsets([2], OffsetSpec.latest())):
        with pytest.raises(FlussError, match="has 4 buckets"):
            run(read)


def test_a_server_that_refuses_the_place_of_rows_is_asked_for_the_partition_again(server: PartitionedServer) -> None:
    """Its partition was found with one bucket, and has more by now: the next rows are not sent at all."""
    server.partitions = {"p": 1}
    client = client_of(server, writer__batch_timeout_ms=0)
    writer = run(client.table(PATH)).append_writer()
    writer.append([1, "p"]).result(10)

    def refuse(request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        server.bucket_counts = {"p": 4}
        answer = pb.ProduceLogResponse()
        answer.buckets_resp.add(bucket_id=0, partition_id=1, error_code=74, error_message="other buckets")
        return answer

    server.handlers[PRODUCE] = refuse
    asked, sent = server.count(METADATA), server.count(PRODUCE)
    with pytest.raises(FlussError, match="other buckets"):
        writer.append([2, "p"]).result(10)
    eventually(lambda: client.metadata.table(PATH).bucket_counts == {1: 4})
    with pytest.raises(FlussError, match="has 4 buckets and not 1"):
        writer.append([3, "p"]).result(10)
    assert server.count(METADATA) > asked
    assert server.count(PRODUCE) == sent + 1
