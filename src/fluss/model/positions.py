"""How far a scanner has read, for keeping outside of it."""

from __future__ import annotations

import json
from typing import Any

from fluss.model.errors import InvalidRequestError
from fluss.model.paths import TableBucket


class Positions(dict[TableBucket, int]):
    """The offset that each bucket is read from next."""

    def to_json(self) -> str:
        """Text to store: `[[table id, partition id or null, bucket, offset], ...]`."""
        return json.dumps([[b.table_id, b.partition_id, b.bucket, offset] for b, offset in self.items()])

    @classmethod
    def from_json(cls, text: str | bytes) -> Positions:
        """Positions from stored text."""
        try:
            items = [_item(*item) for item in json.loads(text)]
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"These are no positions of a scanner: {error}.") from None
        return cls(items)


def _item(table_id: Any, partition_id: Any, bucket: Any, offset: Any) -> tuple[TableBucket, int]:
    for number in (table_id, bucket, offset, 0 if partition_id is None else partition_id):
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"{number!r} is not a whole number")
    return TableBucket(table_id, bucket, partition_id), offset
