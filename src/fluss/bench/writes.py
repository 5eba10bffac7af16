"""Workloads that write many rows, each time to a new table, and read them back when the clock has stopped."""

from __future__ import annotations

import pyarrow as pa

from fluss.bench.bench import Bench
from fluss.bench.data import check_rows, joined, kv_batches, log_batches
from fluss.sync import FlussTable


def append_all(table: FlussTable, batches: list[pa.RecordBatch]) -> None:
    """Append batches, and wait until they are stored."""
    writer = table.new_append().create_writer()
    for batch in batches:
        writer.write_arrow_batch(batch)
    writer.flush()


def upsert_all(table: FlussTable, batches: list[pa.RecordBatch]) -> None:
    """Upsert batches, and wait until they are stored."""
    writer = table.new_upsert().create_writer()
    for batch in batches:
        writer.write_arrow_batch(batch)
    writer.flush()


def append(bench: Bench) -> None:
    batches = log_batches(bench.size.rows, bench.size.batch_rows)
    expected, meter = joined(batches), bench.meter()
    while meter.more():
        with bench.log_table() as table:
            with meter.run(expected.num_rows, expected.nbytes):
                append_all(table, batches)
            check_rows(table.new_scan().to_arrow(), expected)


def append_rows(bench: Bench) -> None:
    expected = joined(log_batches(bench.size.single_rows, bench.size.batch_rows))
    rows, meter = expected.to_pylist(), bench.meter()
    while meter.more():
        with bench.log_table() as table:
            writer = table.new_append().create_writer()
            with meter.run(expected.num_rows, expected.nbytes):
                for row in rows:
                    writer.append(row)
                writer.flush()
            check_rows(table.new_scan().to_arrow(), expected)


def upsert(bench: Bench) -> None:
    versions = [kv_batches(bench.size.rows, bench.size.batch_rows, version) for version in (1, 2)]
    expected = [joined(batches) for batches in versions]
    meters = [bench.meter("insert"), bench.meter("update")]
    while meters[0].more():
        with bench.kv_table() as table:
            for batches, rows, meter in zip(versions, expected, meters, strict=True):
                with meter.run(rows.num_rows, rows.nbytes):
                    upsert_all(table, batches)
                check_rows(table.new_scan().to_arrow(), rows)


def upsert_rows(bench: Bench) -> None:
    batches = kv_batches(bench.size.single_rows, bench.size.batch_rows, version=1)
    rows = [row for batch in batches for row in batch.to_pylist()]
    expected, meter = joined(batches), bench.meter()
    while meter.more():
        with bench.kv_table() as table:
            writer = table.new_upsert().create_writer()
            with meter.run(expected.num_rows, expected.nbytes):
                for row in rows:
                    writer.upsert(row)
                writer.flush()
            check_rows(table.new_scan().to_arrow(), expected)
