"""Record batches of Python rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from fluss.formats.rows.python_rows import RowBuilder
from fluss.model.schema import Column, Schema


def batch_of(columns: list[Column], rows: Iterable[Any]) -> pa.RecordBatch:
    builder = RowBuilder(Schema.of(columns))
    for row in rows:
        builder.append(row)
    batch = builder.build()
    batch.validate(full=True)
    return batch
