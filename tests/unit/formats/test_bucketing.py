from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats import kernel
from fluss.formats.rows.keys import BucketAssigner, BucketHash, KeyEncoder, bucket_of, buckets_for
from fluss.model.errors import SchemaMismatchError
from fluss.model.forms.arrow_types import arrow_field
from tests.kit.formats.vectors import KEY_COLUMNS, KEYS, KEYS_WITH_HIGH_BYTES

BUCKET_COUNTS = (3, 7, 16)


def _batch(row: dict[str, Any]) -> pa.RecordBatch:
    fields = [arrow_field(name, KEY_COLUMNS[name].data_type) for name in row]
    return pa.RecordBatch.from_pylist([row], schema=pa.schema(fields))


@pytest.mark.parametrize(("key", "encoded", "hashed", "expected"), KEYS)
def test_keys_and_buckets_are_java_s(key: dict[str, Any], encoded: str, hashed: int, expected: tuple[int, ...]) -> None:
    columns = [KEY_COLUMNS[name] for name in key]
    encoder = KeyEncoder(columns)
    assert encoder.encode_row(key).hex() == encoded
    assert encoder.encode_row(tuple(key.values())).hex() == encoded
    assert encoder.encode(_batch(key)).to_pylist() == [bytes.fromhex(encoded)]
    assert encoder.decode([bytes.fromhex(encoded)]).to_pylist() == [key]
    assert kernel.hash_key(bytes.fromhex(encoded), True) == hashed
    for count, bucket in zip(BUCKET_COUNTS, expected, strict=True):
        assert bucket_of(bytes.fromhex(encoded), count) == bucket
        assert buckets_for(_batch(key), columns, count).to_pylist() == [bucket]


@pytest.mark.parametrize(
    ("key", "count", "bucket"),
    [
        (bytes.fromhex("000a"), 7, 1),
        (bytes.fromhex("000a0a0a"), 12, 0),
        (b"2bb87d68-baf9-4e64-90f9-f80910419fa6", 16, 6),
    ],
)
def test_more_java_buckets(key: bytes, count: int, bucket: int) -> None:
    assert bucket_of(key, count) == bucket


def test_leftover_bytes_are_sign_extended() -> None:
    assert kernel.hash_key(bytes.fromhex("01020304ff"), True) == 303003815
    assert kernel.hash_key(bytes.fromhex("01020304ff"), False) != 303003815


@pytest.mark.parametrize(("key", "java", "pyfluss"), KEYS_WITH_HIGH_BYTES)
def test_pyfluss_picks_other_buckets(key: int, java: int, pyfluss: int) -> None:
    encoded = KeyEncoder([KEY_COLUMNS["id"]]).encode_row((key,))
    assert bucket_of(encoded, 16) == java
    assert bucket_of(encoded, 16, BucketHash.PYFLUSS) == pyfluss
    batch = _batch({"id": key})
    assert buckets_for(batch, [KEY_COLUMNS["id"]], 16, BucketHash.PYFLUSS).to_pylist() == [pyfluss]


@given(
    ids=st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=50),
    count=st.integers(1, 1000),
    variant=st.sampled_from(BucketHash),
)
def test_batch_and_single_keys_agree(ids: list[int], count: int, variant: BucketHash) -> None:
    columns = [KEY_COLUMNS["id"]]
    batch = pa.RecordBatch.from_arrays([pa.array(ids, pa.int32()), pa.nulls(len(ids))], names=["id", "other"])
    assigner = BucketAssigner(columns, count, variant)
    keys = KeyEncoder(columns).encode(batch).to_pylist()
    assigned = assigner.assign(batch).to_pylist()
    assert assigned == [assigner.assign_key(key) for key in keys]
    assert all(0 <= bucket < count for bucket in assigned)


def test_bucket_count_is_checked() -> None:
    for count in (0, -1, 1 << 31):
        with pytest.raises(ValueError, match="bucket"):
            bucket_of(b"a", count)
    with pytest.raises(ValueError, match="bucket"):
        buckets_for(_batch({"id": 1}), [KEY_COLUMNS["id"]], 0)


def test_key_of_a_row_with_more_columns() -> None:
    encoder = KeyEncoder([KEY_COLUMNS["ts"], KEY_COLUMNS["id"]])
    assert encoder.encode_row({"id": 1, "name": "unused", "ts": 3}) == b"\x03\x01"
    with pytest.raises(SchemaMismatchError, match="'ts'"):
        encoder.encode_row({"id": 1})
