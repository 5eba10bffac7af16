"""Files read in shares, and written anew: deleted rows stay deleted, every other row is there once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluss.lake.format import OFFSET, LakeFile
from fluss.lake.parquet import FileTarget, read_file
from fluss.lake.tiering.task import RewritePart, TieredTable, rewrite_files
from fluss.model.paths import TableBucket, TablePath

SCHEMA = pa.schema(
    [
        pa.field("tags", pa.list_(pa.string()), metadata={"PARQUET:field_id": "1"}),
        pa.field(OFFSET, pa.int64(), metadata={"PARQUET:field_id": "2"}),
    ]
)


def data_file(path: Path, offsets: range, deleted: tuple[int, ...] = ()) -> LakeFile:
    """A file with these offsets, some of whose positions are deleted."""
    pq.write_table(pa.table([[[str(o)] for o in offsets], list(offsets)], schema=SCHEMA), path, row_group_size=10)
    deletes = path.with_suffix(".deletes")
    pq.write_table(pa.table({"file_path": [str(path)] * len(deleted), "pos": deleted}), deletes)
    return LakeFile(str(path), (), 0, len(offsets), path.stat().st_size, (str(deletes),) if deleted else ())


@pytest.mark.parametrize("shares", [1, 2, 3, 5, 9])
def test_shares_are_the_whole(tmp_path: Path, shares: int) -> None:
    file = data_file(tmp_path / "a.parquet", range(45), deleted=(0, 9, 10, 29, 44))
    parts = [
        [offset for batch in read_file(file, SCHEMA, {}, (share, shares)) for offset in batch[OFFSET].to_pylist()]
        for share in range(shares)
    ]
    assert [offset for part in parts for offset in part] == [o for o in range(45) if o not in (0, 9, 10, 29, 44)]
    assert len([part for part in parts if part]) == min(shares, 5)


def test_rewritten_in_the_order_of_offsets(tmp_path: Path) -> None:
    later = data_file(tmp_path / "a.parquet", range(30, 60), deleted=(1,))
    earlier = data_file(tmp_path / "b.parquet", range(0, 40, 2), deleted=(0,))
    target = FileTarget(str(tmp_path), SCHEMA, ())
    table = TieredTable(TablePath("db", "t"), 1, ("tags",), target)
    done = rewrite_files(RewritePart(table, TableBucket(1, 0), (), 0, 0, (later, earlier)))
    assert done.removed == [later, earlier]
    (written,) = done.added
    rows = pq.read_table(written.path)
    assert rows[OFFSET].to_pylist() == sorted([*(o for o in range(30, 60) if o != 31), *range(2, 40, 2)])
    assert rows["tags"].to_pylist() == [[str(offset)] for offset in rows[OFFSET].to_pylist()]
    assert done.row_count == rows.num_rows == written.row_count
