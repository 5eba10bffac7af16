"""Which bucket rows go to."""

from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.write.encode_queue import pieces
from fluss.client.write.routing import (
    LARGE_SLICE_BYTES_MIN,
    SLICE_BYTES_MIN,
    SLICE_ROWS_MIN,
    SMALL_SLICES_MAX,
    RoundRobin,
    Slices,
    Sticky,
    bucket_splitter,
    split_by_index,
)
from fluss.formats.rows.keys import BucketHash, assigner_for, buckets_for
from fluss.model.config import Config
from fluss.model.descriptor import TableDescriptor
from fluss.model.infos import TableInfo
from tests.kit.scripted import PATH, descriptor


def info_of(table: TableDescriptor) -> TableInfo:
    return TableInfo(PATH, 1, 1, table, table.bucket_count or 1, 0, 0)


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch({"id": list(range(count)), "name": [f"n{i}" for i in range(count)]})


def ids(parts: list[tuple[int, pa.RecordBatch]]) -> dict[int, list[int]]:
    result: dict[int, list[int]] = {}
    for bucket, part in parts:
        result.setdefault(bucket, []).extend(part.column("id").to_pylist())
    return result


@pytest.mark.parametrize("variant", list(BucketHash))
def test_keyed_rows_go_where_the_hash_says_and_keep_their_order(variant: BucketHash) -> None:
    info = info_of(descriptor(7, ["id"]))
    batch = rows(1_000)
    parts = bucket_splitter(info, Config({"bucket-hash": variant.value}))(batch)
    expected: dict[int, list[int]] = {}
    key_column = [column for column in info.schema.columns if column.name == "id"]
    for number, bucket in enumerate(buckets_for(batch, key_column, 7, variant).to_pylist()):
        expected.setdefault(bucket, []).append(number)
    assert ids(parts) == expected


def test_the_two_hashes_differ() -> None:
    info, batch = info_of(descriptor(16, ["id"])), rows(1_000)
    java, pyfluss = (ids(bucket_splitter(info, Config({"bucket-hash": name}))(batch)) for name in ("java", "pyfluss"))
    assert java != pyfluss


def test_one_bucket_takes_the_batch_as_it_is() -> None:
    batch = rows(3)
    ((bucket, part),) = bucket_splitter(info_of(descriptor(1, ["id"])), Config())(batch)
    assert bucket == 0
    assert part is batch


def test_sticky_stays_for_a_batch_and_moves_on() -> None:
    sticky = Sticky(4)
    chosen = [sticky(rows(5)) for _ in range(200)]
    assert all(len(parts) == 1 for parts in chosen)
    sequence = [parts[0][0] for parts in chosen]
    assert set(sequence) == {0, 1, 2, 3}
    assert all(first != second for first, second in pairwise(sequence))


def test_round_robin_spreads_evenly_and_goes_on_where_it_stopped() -> None:
    robin = RoundRobin(4)
    counts = dict.fromkeys(range(4), 0)
    for _ in range(8):
        for bucket, part in robin(rows(1)):
            counts[bucket] += part.num_rows
    assert set(counts.values()) == {2}
    ((next_bucket, _),) = robin(rows(1))
    parts = ids(robin(rows(10)))
    assert parts == {(next_bucket + 1 + number) % 4: list(range(number, 10, 4)) for number in range(4)}


def test_slices_spread_each_row_buffer_evenly_and_keep_its_order() -> None:
    splitter = bucket_splitter(info_of(descriptor(4, [])), Config({"writer.bucket.no-key-assigner": "slices"}))
    for count in (10_001, 4 * SLICE_ROWS_MIN):
        parts = splitter(rows(count))
        assert sorted(bucket for bucket, _ in parts) == [0, 1, 2, 3]
        assert [number for _, part in parts for number in part.column("id").to_pylist()] == list(range(count))
        assert max(part.num_rows for _, part in parts) - min(part.num_rows for _, part in parts) <= 1


def test_slices_are_never_small() -> None:
    slices = Slices(100)
    assert [part.num_rows for _, part in slices(rows(3 * SLICE_ROWS_MIN))] == [SLICE_ROWS_MIN] * 3
    wide = pa.record_batch({"id": [1, 2, 3], "blob": [b"x" * SLICE_BYTES_MIN] * 3})
    assert [part.num_rows for _, part in slices(wide)] == [1, 1, 1]
    assert len(slices(rows(50_000))) == SMALL_SLICES_MAX
    large = pa.record_batch({"blob": [b"x" * LARGE_SLICE_BYTES_MIN] * 20})
    assert [part.num_rows for _, part in slices(large)] == [1] * 20
    few = Counter(bucket for _ in range(1_000) for bucket, part in slices(rows(5)) if part.num_rows == 5)
    assert set(few) == set(range(100))
    assert few.total() == 1_000
    assert [part.num_rows for _, part in slices(rows(0))] == [0]


def test_partitions_that_take_turns_have_rows_in_all_buckets() -> None:
    slices = Slices(4)
    buckets = [[slices(rows(5))[0][0] for _ in range(4)] for _ in range(200)]
    assert all(set(column) == {0, 1, 2, 3} for column in zip(*buckets, strict=True))


def test_splitting_an_empty_batch_and_one_that_skips_buckets() -> None:
    assert split_by_index(rows(0), pa.array([], pa.int32())) == []
    assert ids(split_by_index(rows(4), pa.array([5, 0, 5, 0], pa.int32()))) == {0: [1, 3], 5: [0, 2]}


@pytest.mark.parametrize("lake_format", ["PAIMON", "ICEBERG", "LANCE"])
def test_lake_tables_have_their_format_s_buckets(lake_format: str) -> None:
    info = info_of(descriptor(7, ["id"], **{"table.datalake.format": lake_format}))
    key_column = [column for column in info.schema.columns if column.name == "id"]
    assigner = assigner_for(key_column, 7, lake_format, BucketHash.JAVA)
    expected: dict[int, list[int]] = {}
    for number, bucket in enumerate(assigner.assign(rows(1_000)).to_pylist()):
        expected.setdefault(bucket, []).append(number)
    assert ids(bucket_splitter(info, Config())(rows(1_000))) == expected
    assert (expected == ids(bucket_splitter(info_of(descriptor(7, ["id"])), Config())(rows(1_000)))) == (
        lake_format == "LANCE"
    )


@pytest.mark.parametrize(("count", "size_bytes"), [(0, 100), (1, 1), (10, 1), (1_000, 100), (1_000, 10**9)])
def test_pieces_keep_all_rows_and_their_order(count: int, size_bytes: int) -> None:
    cut: list[Any] = pieces(rows(count), size_bytes)
    assert list(chain.from_iterable(part.column("id").to_pylist() for part in cut)) == list(range(count))
    assert all(part.num_rows for part in cut)
    assert all(part.nbytes <= 2 * size_bytes or part.num_rows == 1 for part in cut)
