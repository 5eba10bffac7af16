"""What this package relies on in pyiceberg: layout, one snapshot per commit, compare-and-swap, schema changes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from fluss.lake.format import BUCKET, OFFSET, SYSTEM_COLUMNS, TIMESTAMP, LakeConflictError, LakeFile
from fluss.lake.iceberg.catalog import IcebergCatalog
from fluss.lake.options import LakeOptions
from fluss.lake.parquet import FileTarget, write_files
from fluss.model.errors import InvalidRequestError
from tests.unit.lake.iceberg_tables import COLUMNS, PATH, info_of, options, read, reloaded, rows, write

__all__ = ["options"]  # a fixture

NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("flag", pa.bool_()),
        ("real", pa.float32()),
        ("number", pa.float64()),
        ("price", pa.decimal128(20, 4)),
        ("fixed", pa.binary(3)),
        ("blob", pa.binary()),
        ("day", pa.date32()),
        ("time", pa.time32("ms")),
        ("local", pa.timestamp("ms")),
        ("instant", pa.timestamp("us", "UTC")),
        ("items", pa.list_(pa.int16())),
        ("counts", pa.map_(pa.string(), pa.list_(pa.int8()))),
        ("inner", pa.struct([("x", pa.int8()), ("names", pa.list_(pa.string()))])),
    ]
)


def test_layout_of_a_log_table(options: LakeOptions) -> None:
    table = IcebergCatalog(options).ensure_table(info_of(partitions=("day",)))._table
    assert [(field.name, str(field.field_type), field.required) for field in table.schema().fields] == [
        ("id", "long", True),
        ("day", "string", True),
        ("note", "string", False),
        (BUCKET, "int", True),
        (OFFSET, "long", True),
        (TIMESTAMP, "timestamptz", True),
    ]
    assert [(field.name, str(field.transform)) for field in table.spec().fields] == [
        ("day", "identity"),
        (BUCKET, "identity"),
    ]
    assert str(table.sort_order().fields[0]).endswith("ASC NULLS FIRST")
    assert table.format_version == 2
    assert table.properties["commit.retry.num-retries"] == "0"
    assert table.properties["fluss.table.datalake.enabled"] == "true"
    assert table.properties["write.metadata.delete-after-commit.enabled"] == "true"
    assert table.properties["fluss.owner"] == "shop"
    assert "write.merge.mode" not in table.properties


def test_layout_of_a_primary_key_table(options: LakeOptions) -> None:
    table = IcebergCatalog(options).ensure_table(info_of(keys=("id", "day"), partitions=("day",)))._table
    assert table.schema().identifier_field_names() == {"id", "day"}
    assert [(field.name, str(field.transform)) for field in table.spec().fields] == [
        ("day", "identity"),
        ("id_bucket", "bucket[3]"),
    ]
    assert table.properties["write.merge.mode"] == "merge-on-read"


def test_what_the_layout_can_not_have(options: LakeOptions) -> None:
    numbers = pa.schema([pa.field("id", pa.int64(), False), pa.field("hour", pa.int32(), False)])
    with pytest.raises(InvalidRequestError, match=r"Partition column 'hour' .* is not a STRING"):
        IcebergCatalog(options).ensure_table(info_of(numbers, partitions=("hour",)))
    assert IcebergCatalog(options).load_table(PATH) is None


def test_every_type_comes_back(options: LakeOptions) -> None:
    from datetime import UTC, date, datetime, time
    from decimal import Decimal

    values = [
        {
            "id": 1,
            "tiny": -5,
            "small": 300,
            "flag": True,
            "real": 1.5,
            "number": 2.5,
            "price": Decimal("123.4567"),
            "fixed": b"abc",
            "blob": b"\x00\xff",
            "day": date(2026, 1, 2),
            "time": time(1, 2, 3, 4000),
            "local": datetime(2026, 1, 2, 3, 4, 5, 6000),
            "instant": datetime(2026, 1, 2, tzinfo=UTC),
            "items": [1, None, -3],
            "counts": [("a", [1, None])],
            "inner": {"x": 3, "names": ["p", None]},
        },
        {"id": 2},
    ]
    table = IcebergCatalog(options).ensure_table(info_of(NESTED))
    batch = rows(NESTED, values)
    table.commit(write(table, batch), [], "offsets")
    assert read(reloaded(options), NESTED) == batch.select(NESTED.names).to_pylist()


def test_one_snapshot_per_commit_with_files_more_and_less(options: LakeOptions) -> None:
    table = IcebergCatalog(options).ensure_table(info_of())
    assert table.snapshot_id is None
    assert table.tiered() is None
    first = table.commit(
        [
            *write(table, rows(COLUMNS, [{"id": 1, "day": "a"}])),
            *write(table, rows(COLUMNS, [{"id": 2, "day": "a"}], bucket=1), bucket=1),
        ],
        [],
        "offsets-1",
    )
    table = reloaded(options)
    assert [(item.snapshot_id, item.offsets_path) for item in table.all_tiered()] == [(first, "offsets-1")]
    old = [file for file in table.files(first) if file.bucket == 1]
    second = table.commit(write(table, rows(COLUMNS, [{"id": 3, "day": "a"}], 5, 1), bucket=1), old, "offsets-2")
    table = reloaded(options)
    tiered = table.tiered()
    assert tiered is not None
    assert (tiered.snapshot_id, tiered.offsets_path, len(table.all_tiered())) == (second, "offsets-2", 2)
    assert [row["id"] for row in read(table, COLUMNS)] == [1, 3]
    # A reader of the earlier snapshot still finds its files.
    assert sum(file.row_count for file in table.files(first)) == 2
    assert all(Path(file.path).exists() for file in table.files(first))
    assert table.sequence_number(first) == 1
    assert table.sequence_number(12345) is None


def test_files_know_their_partition_and_their_statistics(options: LakeOptions) -> None:
    table = IcebergCatalog(options).ensure_table(info_of(partitions=("day",)))
    batch = rows(COLUMNS, [{"id": 4, "day": "2026/01"}, {"id": 9, "day": "2026/01"}], bucket=2)
    table.commit(write(table, batch, "2026/01", bucket=2), [], "offsets")
    table = reloaded(options)
    (file,) = table.files(table.snapshot_id)
    assert (file.partition, file.bucket, file.row_count, file.has_deletes) == (("2026/01",), 2, 2, False)
    found = table._table.scan("id > 9").plan_files()
    assert not list(found), "statistics must let readers leave out files"
    assert len(list(table._table.scan("id = 9 and day = '2026/01'").plan_files())) == 1


def test_a_stale_commit_is_refused_and_changes_nothing(options: LakeOptions) -> None:
    stale = IcebergCatalog(options).ensure_table(info_of())
    winner = reloaded(options)
    winner.commit(write(winner, rows(COLUMNS, [{"id": 1, "day": "a"}])), [], "winner")
    with pytest.raises(LakeConflictError, match=r"shop\.orders"):
        stale.commit(write(stale, rows(COLUMNS, [{"id": 2, "day": "a"}])), [], "stale")
    stale = reloaded(options)
    winner = reloaded(options)
    winner.commit(write(winner, rows(COLUMNS, [{"id": 3, "day": "a"}], 1)), [], "winner")
    with pytest.raises(LakeConflictError):
        stale.commit([], stale.files(stale.snapshot_id), "stale")
    assert [row["id"] for row in read(reloaded(options), COLUMNS)] == [1, 3]


def test_a_column_that_was_added(options: LakeOptions) -> None:
    table = IcebergCatalog(options).ensure_table(info_of())
    table.commit(write(table, rows(COLUMNS, [{"id": 1, "day": "a", "note": "x"}])), [], "1")
    wider = COLUMNS.append(pa.field("tags", pa.list_(pa.int8())))
    table = IcebergCatalog(options).ensure_table(info_of(wider))
    assert table.column_names == wider.names
    assert table.file_schema.names == [*wider.names, *SYSTEM_COLUMNS]
    table.commit(write(table, rows(wider, [{"id": 2, "day": "a", "tags": [1]}], 1)), [], "2")
    assert read(reloaded(options), wider) == [
        {"id": 1, "day": "a", "note": "x", "tags": None},
        {"id": 2, "day": "a", "note": None, "tags": [1]},
    ]
    assert IcebergCatalog(options).ensure_table(info_of(wider)).column_names == wider.names


def test_a_lake_table_of_another_shape_is_not_touched(options: LakeOptions) -> None:
    IcebergCatalog(options).ensure_table(info_of())
    other = pa.schema([pa.field("id", pa.string(), False), pa.field("day", pa.string(), False), ("note", pa.string())])
    with pytest.raises(InvalidRequestError, match="of another shape"):
        IcebergCatalog(options).ensure_table(info_of(other))
    with pytest.raises(InvalidRequestError, match="of another shape"):
        IcebergCatalog(options).ensure_table(info_of(keys=("id",)))


def test_who_only_looks_makes_nothing(options: LakeOptions, tmp_path: Path) -> None:
    assert IcebergCatalog(options).load_table(PATH) is None
    assert not list(tmp_path.iterdir())


def test_catalogs_in_sqlite_take_readers_beside_the_one_who_commits(options: LakeOptions) -> None:
    IcebergCatalog(options).ensure_table(info_of())
    assert options.sqlite_path is not None
    with closing(sqlite3.connect(options.sqlite_path)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_snapshots_that_are_gone(options: LakeOptions) -> None:
    table = IcebergCatalog(options).ensure_table(info_of())
    first = table.commit(write(table, rows(COLUMNS, [{"id": 1, "day": "a"}])), [], "1")
    table = reloaded(options)
    table.commit(write(table, rows(COLUMNS, [{"id": 2, "day": "a"}], 1)), [], "2")
    table = reloaded(options)
    table.expire([first])
    table = reloaded(options)
    assert len(table.snapshots()) == 1
    with pytest.raises(InvalidRequestError, match=f"Snapshot {first} .* load the table again"):
        table.files(first)
    assert [row["id"] for row in read(table, COLUMNS)] == [1, 2]


def test_a_file_without_rows_is_not_written(options: LakeOptions) -> None:
    table = IcebergCatalog(options).ensure_table(info_of())
    assert write(table, rows(COLUMNS, [])) == []


def test_files_are_begun_anew_when_they_are_large(options: LakeOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.lake.parquet.ROW_GROUP_ROWS", 10)
    table = IcebergCatalog(options).ensure_table(info_of())
    target = FileTarget(table.location, table.file_schema, (), table.io_properties, file_bytes=1)
    batches = [rows(COLUMNS, [{"id": n, "day": "a"} for n in range(s, s + 7)], s) for s in range(0, 70, 7)]
    written = write_files(target, (), 0, batches)
    assert [file.row_count for file in written] == [14] * 5
    table.commit(written, [], "1")
    assert [row["id"] for row in read(reloaded(options), COLUMNS)] == list(range(70))


def test_a_write_that_fails_leaves_no_file(options: LakeOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.lake.parquet.ROW_GROUP_ROWS", 1)
    table = IcebergCatalog(options).ensure_table(info_of())
    target = FileTarget(table.location, table.file_schema, (), table.io_properties)

    def broken() -> object:
        yield rows(COLUMNS, [{"id": 1, "day": "a"}])
        raise OSError("the log is gone")

    with pytest.raises(OSError, match="the log is gone"):
        write_files(target, (), 0, broken())  # type: ignore[arg-type]
    assert not list(Path(table.location).rglob("*.parquet"))


def test_lake_files_and_targets_can_be_sent_to_tasks(options: LakeOptions) -> None:
    import pickle

    table = IcebergCatalog(options).ensure_table(info_of())
    written = write(table, rows(COLUMNS, [{"id": 1, "day": "a"}]))
    table.commit(pickle.loads(pickle.dumps(written)), [], "1")
    files: list[LakeFile] = pickle.loads(pickle.dumps(reloaded(options).files(reloaded(options).snapshot_id)))
    assert [file.row_count for file in files] == [1]
