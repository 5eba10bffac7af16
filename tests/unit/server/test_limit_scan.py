"""LimitScan: the last rows of a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.limits import Limits
from tests.kit.thread_server import RunningServer, Wire, WireError, batch, create_table, fetch, headers, produce
from tests.unit.server.partitioned import create, partition_id, partitioned, produce_into


def limit_scan(wire: Wire, table_id: int, limit: int, bucket: int = 0, partition: int | None = None) -> bytes:
    request = pb.LimitScanRequest(table_id=table_id, bucket_id=bucket, limit=limit, partition_id=partition)
    answer = wire.call(api_keys.LIMIT_SCAN, request)
    if answer.HasField("error_code"):
        assert not answer.HasField("records")
        raise WireError(answer.error_code, answer.error_message)
    assert answer.is_log_table
    assert answer.HasField("records")
    return answer.records


@pytest.mark.parametrize(("limit", "first"), [(1, 6), (3, 6), (4, 3), (6, 3), (7, 0), (9, 0), (2**31 - 1, 0)])
def test_batches_with_the_last_rows(wire: Wire, limit: int, first: int) -> None:
    table_id = create_table(wire)
    for _ in range(3):
        produce(wire, table_id, batch(3))
    found = headers(limit_scan(wire, table_id, limit))
    assert (found[0].base_offset, found[-1].next_offset) == (first, 9)


def test_an_empty_bucket(wire: Wire) -> None:
    assert limit_scan(wire, create_table(wire), 10) == b""


def test_over_several_segments(tmp_path: Path) -> None:
    with RunningServer(tmp_path, segment_size_bytes=10_000) as server, server.connect() as wire:
        table_id = create_table(wire)
        for _ in range(100):
            produce(wire, table_id, batch(10))
        found = headers(limit_scan(wire, table_id, 995))
        assert (found[0].base_offset, found[-1].next_offset) == (0, 1_000)


def test_partitions(wire: Wire) -> None:
    table_id = partitioned(wire)
    create(wire, {"name": "a"})
    create(wire, {"name": "b"})
    for name, count in (("a", 3), ("b", 5)):
        produce_into(wire, table_id, partition_id(wire, name), count)
    for name, count in (("a", 3), ("b", 5)):
        found = headers(limit_scan(wire, table_id, 10, partition=partition_id(wire, name)))
        assert [header.record_count for header in found] == [count]
    with pytest.raises(WireError):
        limit_scan(wire, table_id, 10, partition=99)


def test_what_is_refused(wire: Wire) -> None:
    table_id = create_table(wire)
    for limit in (0, -1):
        with pytest.raises(WireError, match="at least 1") as raised:
            limit_scan(wire, table_id, limit)
        assert raised.value.code == 2
    for unknown, bucket in ((table_id, 7), (table_id + 1, 0)):
        with pytest.raises(WireError) as raised:
            limit_scan(wire, unknown, 1, bucket)
        assert raised.value.code == 21


def test_the_answer_has_a_limit(tmp_path: Path) -> None:
    size_bytes = len(batch(100))
    with (
        RunningServer(tmp_path, limits=Limits(limit_scan_bytes_max=3 * size_bytes)) as server,
        server.connect() as wire,
    ):
        table_id = create_table(wire)
        for _ in range(5):
            produce(wire, table_id, batch(100))
        assert len(headers(limit_scan(wire, table_id, 300))) == 3
        with pytest.raises(WireError, match="fewer rows") as raised:
            limit_scan(wire, table_id, 301)
        assert raised.value.code == 13
        assert len(headers(fetch(wire, table_id).records)) == 5
