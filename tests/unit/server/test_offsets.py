"""ListOffsets: begin, end, and where a time is."""

from __future__ import annotations

import time

import pytest

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from tests.kit.thread_server import Wire, WireError, batch, create_table, fetch, headers, produce

EARLIEST, LATEST, TIMESTAMP = 0, 1, 2


def list_offsets(
    wire: Wire, table_id: int, kind: int, buckets: list[int], timestamp: int | None = None
) -> list[pb.PbListOffsetsBucketResponse]:
    request = pb.ListOffsetsRequest(follower_server_id=-1, offset_type=kind, table_id=table_id, bucket_id=buckets)
    if timestamp is not None:
        request.start_timestamp = timestamp
    return list(wire.call(api_keys.LIST_OFFSETS, request).buckets_resp)


def offset(wire: Wire, table_id: int, kind: int, timestamp: int | None = None) -> int:
    (entry,) = list_offsets(wire, table_id, kind, [0], timestamp)
    if entry.HasField("error_code"):
        raise WireError(entry.error_code, entry.error_message)
    return entry.offset


def test_begin_and_end(wire: Wire) -> None:
    table_id = create_table(wire)
    assert (offset(wire, table_id, EARLIEST), offset(wire, table_id, LATEST)) == (0, 0)
    produce(wire, table_id, batch(3))
    assert (offset(wire, table_id, EARLIEST), offset(wire, table_id, LATEST)) == (0, 3)


def test_times(wire: Wire) -> None:
    table_id = create_table(wire)
    times_ms: list[int] = []
    for _ in range(3):
        while times_ms and time.time_ns() // 1_000_000 <= times_ms[-1]:
            time.sleep(0.001)
        produce(wire, table_id, batch(2))
        times_ms.append(headers(fetch(wire, table_id).records)[-1].commit_timestamp_ms)
    assert offset(wire, table_id, TIMESTAMP, 0) == 0
    assert [offset(wire, table_id, TIMESTAMP, at) for at in times_ms] == [0, 2, 4]
    while time.time_ns() // 1_000_000 <= times_ms[-1]:
        time.sleep(0.001)
    assert offset(wire, table_id, TIMESTAMP, times_ms[-1] + 1) == 6


@pytest.mark.parametrize("timestamp", [None, 2**62])
def test_no_time_or_one_in_the_future(wire: Wire, timestamp: int | None) -> None:
    table_id = create_table(wire)
    with pytest.raises(WireError) as raised:
        offset(wire, table_id, TIMESTAMP, timestamp)
    assert raised.value.code == 38


def test_one_entry_for_every_bucket(wire: Wire) -> None:
    table_id = create_table(wire, buckets=2)
    produce(wire, table_id, batch(3), 1)
    entries = list_offsets(wire, table_id, LATEST, [1, 9, 0])
    assert [(entry.bucket_id, entry.error_code, entry.offset) for entry in entries] == [
        (1, 0, 3),
        (9, 21, 0),
        (0, 0, 0),
    ]
    assert [entry.HasField("error_code") for entry in entries] == [False, True, False]


def test_unknown_kind(wire: Wire) -> None:
    table_id = create_table(wire)
    with pytest.raises(WireError, match="offset_type 9") as raised:
        list_offsets(wire, table_id, 9, [0])
    assert raised.value.code == 2
