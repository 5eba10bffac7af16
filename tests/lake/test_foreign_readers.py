"""Programs that are not ours find in the lake what the log of a table leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from fluss.lake.format import CATALOG_NAME
from fluss.lake.report import Status
from fluss.lake.tiering.round import TieringSettings, tier_table
from fluss.lake.tiering.task import LocalExecutor
from fluss.sync import TablePath
from fluss.testing import FlussServer
from tests.kit.lake.oracle import arranged, expected_rows
from tests.kit.lake.samples import (
    KEYED_LOG,
    KEYED_NESTED,
    NESTED_TYPES,
    PARTITIONED_PRIMARY_KEY,
    PRIMARY_KEY,
    SAMPLES,
    Sample,
)
from tests.peers.icebergspark import read_with_spark
from tests.peers.ourclient import OurPeer
from tests.peers.peer import Row

DATABASE = "foreign"


@dataclass(frozen=True)
class Tiered:
    """Tables of all kinds that were tiered twice, and what should be in them."""

    warehouse: Path
    expected: dict[str, list[Row]]

    def load(self, sample: Sample) -> Table:
        """As a program finds a table that knows nothing but the catalog's file."""
        uri = f"sqlite:///{self.warehouse}/catalog.db"
        return SqlCatalog(CATALOG_NAME, uri=uri).load_table((DATABASE, sample.name))


@pytest.fixture(scope="module")
def tiered(lake_server: FlussServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    warehouse = tmp_path_factory.mktemp("foreign") / "warehouse"
    peer = OurPeer(lake_server.bootstrap_servers)
    peer.create_database(DATABASE)
    settings = TieringSettings(peer.conn, LocalExecutor(peer.conn), warehouse=str(warehouse))
    for sample in SAMPLES:
        sample.create(peer, DATABASE)
    for turn in (0, 1):
        for sample in SAMPLES:
            sample.write(peer, DATABASE, turn)
        for sample in SAMPLES:
            report = tier_table(settings, TablePath(DATABASE, sample.name))
            assert report.status is Status.TIERED, report
    expected = {sample.name: expected_rows(peer, DATABASE, sample.name) for sample in SAMPLES}
    assert all(expected.values())
    yield Tiered(warehouse, expected)
    peer.close()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_pyiceberg_finds_what_the_log_leaves(tiered: Tiered, sample: Sample) -> None:
    found = tiered.load(sample).scan().to_arrow().to_pylist()
    expected = tiered.expected[sample.name]
    if sample in (NESTED_TYPES, KEYED_NESTED):
        # pyiceberg reads a null list of structs as an empty one (its issue 3833); the others show that it is null.
        expected = [{**row, "people": row["people"] or []} for row in expected]
    assert arranged(found) == arranged(expected)


@pytest.mark.parametrize(("sample", "key"), [(KEYED_LOG, "text"), (PRIMARY_KEY, "id"), (PARTITIONED_PRIMARY_KEY, "id")])
def test_files_are_left_out_by_bucket_keys(tiered: Tiered, sample: Sample, key: str) -> None:
    """Readers work out a row's bucket themselves: had it another one here, its file would not be looked at."""
    table = tiered.load(sample)
    scan = table.scan()
    for value in {row[key] for row in tiered.expected[sample.name]}:
        wanted = [row for row in tiered.expected[sample.name] if row[key] == value]
        found = scan.filter(EqualTo(key, value))
        assert arranged(found.to_arrow().to_pylist()) == wanted
        assert len(list(found.plan_files())) < len(list(scan.plan_files()))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_duckdb_finds_what_the_log_leaves(tiered: Tiered, sample: Sample) -> None:
    """With its own reader of Parquet: the tables have no deletes that a reader of files alone would miss."""
    tasks = list(tiered.load(sample).scan().plan_files())
    assert not any(task.delete_files for task in tasks)
    files = duckdb.read_parquet([task.file.file_path for task in tasks], union_by_name=True)
    assert arranged(files.to_arrow_table().to_pylist()) == tiered.expected[sample.name]


@pytest.mark.compat
def test_spark_sql_finds_what_the_log_leaves(tiered: Tiered, tmp_path: Path) -> None:
    samples = [sample for sample in SAMPLES if not sample.has_time]  # Spark knows no such column in Iceberg tables
    names = [f"{DATABASE}.{sample.name}" for sample in samples]
    found = read_with_spark(tiered.warehouse / "catalog.db", tiered.warehouse, names, tmp_path)
    for sample, name in zip(samples, names, strict=True):
        rows: pa.Table = found[name]
        assert arranged(rows.to_pylist()) == tiered.expected[sample.name], name
