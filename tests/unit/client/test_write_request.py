"""Answers to write requests that need no parsing."""

from __future__ import annotations

import pytest

from fluss.client.write_request import says_stored
from fluss.protocol import messages_pb2 as pb


def answer(*items: pb.PbProduceLogBucketResponse) -> memoryview:
    return memoryview(pb.ProduceLogResponse(buckets_resp=items).SerializeToString())


@pytest.mark.parametrize("partition_id", [None, 0, 7, 1 << 40])
@pytest.mark.parametrize("bucket", [0, 1, 300])
@pytest.mark.parametrize("offset", [0, 1, 127, 128, 1 << 20, (1 << 63) - 1])
def test_one_batch_that_is_stored(partition_id: int | None, bucket: int, offset: int) -> None:
    said = answer(pb.PbProduceLogBucketResponse(partition_id=partition_id, bucket_id=bucket, base_offset=offset))
    assert says_stored(said, partition_id, bucket)
    assert not says_stored(said, partition_id, bucket + 1)
    assert not says_stored(said, 8, bucket)
    for size in range(len(said)):
        assert not says_stored(said[:size], partition_id, bucket)


@pytest.mark.parametrize(
    "said",
    [
        answer(),
        answer(pb.PbProduceLogBucketResponse(bucket_id=1)),
        answer(pb.PbProduceLogBucketResponse(bucket_id=1, error_code=3)),
        answer(pb.PbProduceLogBucketResponse(bucket_id=1, error_code=3, base_offset=5)),
        answer(*[pb.PbProduceLogBucketResponse(bucket_id=1, base_offset=5)] * 2),
        # An error behind the offset, as the wire may have it.
        memoryview(bytes([0x0A, 6, 0x10, 1, 0x28, 5, 0x18, 3])),
        memoryview(bytes([0x0A, 6, 0x10, 1, 0x28, 0x85, 0x18, 3])),
        # An offset without digits, and one with too many.
        memoryview(bytes([0x0A, 3, 0x10, 1, 0x28])),
        memoryview(bytes([0x0A, 14, 0x10, 1, 0x28, *[0x80] * 10, 0])),
    ],
)
def test_all_else_is_parsed(said: memoryview) -> None:
    assert not says_stored(said, None, 1)


def test_answers_to_puts_look_alike() -> None:
    stored = pb.PbPutKvBucketResponse(bucket_id=1, log_end_offset=5)
    assert says_stored(memoryview(pb.PutKvResponse(buckets_resp=[stored]).SerializeToString()), None, 1)
    stored.pressure = 0.5
    assert not says_stored(memoryview(pb.PutKvResponse(buckets_resp=[stored]).SerializeToString()), None, 1)
