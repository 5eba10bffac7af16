"""Tables of a client below the facades, and all that is in them."""

from __future__ import annotations

import itertools

import pyarrow as pa

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.client.table import TableCore
from fluss.model.descriptor import TableDescriptor
from fluss.model.paths import TablePath
from fluss.model.schema import Schema

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("value", pa.float64())])

_numbers = itertools.count()


def make_table(client: ClientCore, buckets: int = 1, schema: pa.Schema = SCHEMA, **options: object) -> TableCore:
    """A new table."""
    path = TablePath("fluss", f"table_{next(_numbers)}")
    descriptor = TableDescriptor(Schema(schema), bucket_count=buckets, **options)  # type: ignore[arg-type]
    run(client.admin.create_table(path, descriptor))
    return run(client.table(path))


def everything(table: TableCore) -> pa.Table:
    """All rows of a table, bucket by bucket."""
    from fluss.client.scan.batches import to_table

    scanner = table.log_scanner(None)
    run(scanner.subscribe({(None, bucket): -2 for bucket in range(table.info.num_buckets)}))
    try:
        return to_table(run(scanner.read_to_latest()), scanner.arrow_schema)
    finally:
        scanner.close()
