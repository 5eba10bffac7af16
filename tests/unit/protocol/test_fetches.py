"""The answer to a fetch, as the server writes it, against protobuf."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from fluss.protocol import messages_pb2 as pb
from fluss.server.fetch_plan import BucketFetch, FetchPlan
from fluss.server.fetch_response import encode_fetch_response
from fluss.storage.store import Storage

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


FETCHED = st.lists(
    st.tuples(INT64, st.lists(st.tuples(st.none() | INT64, INT32, st.none() | st.binary(max_size=300)), max_size=4)),
    max_size=3,
)


@given(FETCHED)
def test_fetch_responses_are_what_protobuf_reads(
    tables: list[tuple[int, list[tuple[int | None, int, bytes | None]]]],
) -> None:
    plan = FetchPlan(cast(Storage, None), 0)
    for table_id, buckets in tables:
        fetches = []
        for partition_id, bucket_id, records in buckets:
            fetch = BucketFetch(TableBucket(table_id, bucket_id, partition_id), 0, 0, high_watermark=7)
            if records is None:
                fetch.error = FlussError("no", 19)
            else:
                fetch.parts, fetch.size_bytes = [records[:7], memoryview(records)[7:]], len(records)
                fetch.filtered_end_offset = bucket_id if bucket_id % 2 else None
            fetches.append(fetch)
        plan.tables.append((table_id, fetches))
    encoded = encode_fetch_response(plan)
    data = b"".join(encoded.parts)
    assert len(data) == encoded.size_bytes
    response = pb.FetchLogResponse.FromString(data)
    assert [table.table_id for table in response.tables_resp] == [table_id for table_id, _ in tables]
    for table, (_, buckets) in zip(response.tables_resp, tables, strict=True):
        for entry, (partition_id, bucket_id, records) in zip(table.buckets_resp, buckets, strict=True):
            assert entry.bucket_id == bucket_id
            assert entry.HasField("partition_id") == (partition_id is not None)
            assert entry.HasField("error_code") == (records is None)
            assert entry.HasField("records") == (records is not None)
            assert entry.HasField("high_watermark") == (records is not None)
            assert entry.records == (records or b"")
            assert entry.HasField("filtered_end_offset") == (records is not None and bucket_id % 2 == 1)
