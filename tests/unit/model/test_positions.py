"""Positions of readers as text."""

from __future__ import annotations

import pytest

from fluss.model.errors import InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.model.positions import BucketPosition, ChangesPosition

POSITION = ChangesPosition(
    7,
    (
        BucketPosition(TableBucket(7, 0, 3), 12),
        BucketPosition(TableBucket(7, 1, 3), 12, b"\x00\xff"),
        BucketPosition(TableBucket(7, 2), 5, b""),
        BucketPosition(TableBucket(7, 3)),
    ),
    True,
)


def test_a_position_survives_its_text() -> None:
    again = ChangesPosition.from_json(POSITION.to_json())
    assert again == POSITION
    assert hash(again) == hash(POSITION)
    assert again != ChangesPosition(7, POSITION.buckets[:3], True)
    assert ChangesPosition.from_json(POSITION.to_json().encode()) == POSITION


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "table_id": 1, "snapshot": true, "buckets": []}',
        '{"version": 1, "table_id": true, "snapshot": true, "buckets": []}',
        '{"version": 1, "table_id": 1, "snapshot": true, "buckets": [[null, 0, 1]]}',
        '{"version": 1, "table_id": 1, "snapshot": true, "buckets": [[null, 0, 1, "xx"]]}',
        '{"version": 1, "table_id": 1, "snapshot": true, "buckets": [[null, 0, null, "00"]]}',
        '{"version": 1, "table_id": 1, "snapshot": true, "buckets": [[null, "0", 1, null]]}',
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="not a position"):
        ChangesPosition.from_json(text)
