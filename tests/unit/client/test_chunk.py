"""What the batches on the wire are like, by the table's properties."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.formats.batches import statistics
from fluss.formats.batches.log_batch import parse_header, payload_of, statistics_of, verify_crc
from fluss.formats.rows import codecs
from fluss.model.config import Config
from fluss.model.descriptor import TableDescriptor
from fluss.model.schema import Schema
from fluss.protocol import messages_pb2 as pb
from tests.kit.scripted import PATH, ScriptedServer

SCHEMA = Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
ROWS = pa.record_batch({"id": [3, 1, 2], "name": ["b", None, "a"]})


def batch_written(descriptor: TableDescriptor, **settings: Any) -> bytes:
    """The one batch that a writer sends for ROWS."""
    with ScriptedServer(descriptor) as server:
        sent: list[bytes] = []

        def produce(request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
            (bucket,) = request.buckets_req
            sent.append(bucket.records)
            answer = pb.ProduceLogResponse()
            answer.buckets_resp.add(bucket_id=bucket.bucket_id, base_offset=0)
            return answer

        server.handlers[1014] = produce
        client = run(ClientCore.connect(Config({"bootstrap.servers": server.address, **settings})))
        run(client.table(PATH)).append_writer().write_batch(ROWS).result(10)
        run(client.close())
        (batch,) = sent
        return batch


def with_property(key: str, value: str) -> TableDescriptor:
    """As a server sends it: a property may be one that a descriptor made here would not take."""
    return TableDescriptor(SCHEMA, bucket_count=1, properties={key: value})


def test_a_plain_table_gets_magic_0() -> None:
    batch = batch_written(TableDescriptor(SCHEMA, bucket_count=1))
    header = parse_header(batch)
    verify_crc(batch, 0, header)
    assert (header.magic, header.record_count, header.batch_sequence, header.append_only) == (0, 3, 0, True)


@pytest.mark.parametrize(("asked", "columns"), [("*", [0, 1]), ("name", [1])])
def test_statistics_are_written_where_the_table_asks_for_them(asked: str, columns: list[int]) -> None:
    batch = batch_written(with_property("table.statistics.columns", asked))
    header = parse_header(batch)
    verify_crc(batch, 0, header)
    assert (header.magic, header.record_count, header.writer_id) == (1, 3, 1)
    types = [column.data_type for column in SCHEMA.columns]
    found = statistics.decode(statistics_of(batch, 0, header), types)
    expected = {0: (0, 1, 3), 1: (1, b"a", b"b")}
    assert found == {column: expected[column] for column in columns}


def test_the_rows_of_an_indexed_table() -> None:
    batch = batch_written(with_property("table.log.format", "INDEXED"))
    header = parse_header(batch)
    verify_crc(batch, 0, header)
    _, payload = payload_of(batch, 0, header)
    changes, rows = codecs.decode(payload, 3, SCHEMA, "INDEXED")
    assert changes is None
    assert rows.to_pylist() == ROWS.to_pylist()
