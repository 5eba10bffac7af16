"""Tables dropped from the lake: what goes, what stays, and that tiering begins anew."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog

from fluss.api.operations import LakeRegistry
from fluss.cli.main import main
from fluss.lake import drop as drops
from fluss.lake.drop import Drop, drop
from fluss.lake.format import CATALOG_NAME, table_id_of
from fluss.lake.maintenance import OnServer, clean_orphans
from fluss.lake.report import Status
from fluss.lake.tiering.service import tier
from fluss.lake.tiering.task import LocalExecutor
from fluss.model.errors import FlussError, InvalidRequestError, NotFoundError
from fluss.sync import Config, FlussConnection, FlussTable, OffsetSpec, TablePath
from fluss.testing import FlussServer
from tests.kit.lake.lake import Lake
from tests.kit.lake.tiered import check_lake, iceberg_table, tier_here
from tests.kit.lake.unions import tier_fully
from tests.lake.keyed_table import on_disk, rounds, union_ids, upsert

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("tags", pa.list_(pa.string()))])
KINDS = pytest.mark.parametrize("keys", [[], ["id"]], ids=["log", "primary key"])
TIERING_OFF = {"table.datalake.enabled": "false"}


def recreated(lake: Lake, table: FlussTable, keys: list[str]) -> FlussTable:
    """A new table of the same name, with other rows."""
    path = table.table_path
    lake.connection.get_admin().drop_table(path)
    new = lake.create(path.table_name, SCHEMA, keys=keys)
    upsert(new, *range(500, 505))
    return new


def catalog_of(lake: Lake) -> SqlCatalog:
    return SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{lake.warehouse}/catalog.db", warehouse=str(lake.warehouse))


def command(lake: Lake, *arguments: str, said: str = "") -> Any:
    return CliRunner().invoke(main, ["lake", "drop", *arguments, "--bootstrap", lake.address], input=said)


# ---- a table that was dropped and created again ----


@KINDS
def test_a_recreated_table_is_tiered_again(lake: Lake, keys: list[str]) -> None:
    table = lake.create("again", SCHEMA, keys=keys)
    rounds(lake, table, 2)
    old = on_disk(lake)
    new = recreated(lake, table, keys)
    [report] = tier_here(lake, new)
    assert report.status is Status.FAILED
    assert f"'fluss lake drop {new.table_path}'" in str(report.reason)
    done = drop(lake.connection, new.table_path)
    assert (done.files_removed, done.files_left) == (0, [])
    assert old <= on_disk(lake)
    rounds(lake, new, 1)
    check_lake(lake, new)
    assert union_ids(lake, new) == [*range(10), *range(500, 505)]
    clean_orphans(lake.connection, new.table_path, older_than_s=-60)
    assert not old & on_disk(lake)
    check_lake(lake, new)


def test_a_table_of_another_shape_makes_room(lake: Lake) -> None:
    """Also if nothing of it was ever tiered."""
    table = lake.create("shape", SCHEMA)
    tier_here(lake, table)
    lake.connection.get_admin().drop_table(table.table_path)
    new = lake.create("shape", pa.schema([("id", pa.int64())]))
    [report] = tier_here(lake, new)
    assert f"'fluss lake drop {new.table_path}'" in str(report.reason)
    drop(lake.connection, new.table_path)
    [report] = tier_here(lake, new)
    assert report.status is Status.NOTHING_NEW


@KINDS
def test_purge_removes_the_files_of_the_table_alone(lake: Lake, keys: list[str]) -> None:
    table, other = lake.create("purged", SCHEMA, keys=keys), lake.create("other", SCHEMA, keys=keys)
    for item in (table, other):
        rounds(lake, item, 2)
    kept = {path for path in on_disk(lake) if "other" in path.parts}
    new = recreated(lake, table, keys)
    orphan = lake.warehouse / lake.database / "purged" / "data" / "of-a-killed-job.parquet"
    orphan.touch()
    done = drop(lake.connection, new.table_path, purge=True)
    assert done.files_removed > 0
    assert done.files_left == []
    assert on_disk(lake) == kept
    assert not (lake.warehouse / lake.database / "purged").exists()
    check_lake(lake, other)
    rounds(lake, new, 1)
    check_lake(lake, new)


def test_a_renamed_table_in_the_same_folder_keeps_its_files(lake: Lake) -> None:
    """Iceberg's rename moves no file, so the next table of the old name shares the folder."""
    table = lake.create("shared", SCHEMA)
    rounds(lake, table, 2)
    with catalog_of(lake) as catalog:
        catalog.rename_table((lake.database, "shared"), (lake.database, "kept"))
    new = recreated(lake, table, [])
    rounds(lake, new, 1)
    kept = TablePath(lake.database, "kept")
    before = iceberg_table(lake.warehouse, kept).scan().to_arrow()
    assert before.num_rows == 20
    clean_orphans(lake.connection, new.table_path, older_than_s=-60)
    assert iceberg_table(lake.warehouse, kept).scan().to_arrow() == before
    lake.connection.get_admin().drop_table(new.table_path)
    assert drop(lake.connection, new.table_path, warehouse=str(lake.warehouse), purge=True).files_removed > 0
    assert iceberg_table(lake.warehouse, kept).scan().to_arrow() == before
    assert drop(lake.connection, kept, warehouse=str(lake.warehouse), purge=True).files_removed > 0
    assert on_disk(lake) == set()


def test_files_behind_links_stay(lake: Lake, tmp_path: Path) -> None:
    table = lake.create("linked", SCHEMA)
    rounds(lake, table, 1)
    precious = tmp_path / "precious" / "letter"
    precious.parent.mkdir()
    precious.write_text("dear")
    (lake.warehouse / lake.database / "linked" / "data" / "more").symlink_to(precious.parent)
    clean_orphans(lake.connection, table.table_path, older_than_s=-60)
    drop(lake.connection, table.table_path, start_over=True, purge=True)
    assert precious.read_text() == "dear"


def test_files_that_can_not_be_removed_are_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create("stuck", SCHEMA)
    rounds(lake, table, 1)

    class Stuck:
        def __init__(self, filesystem: Any) -> None:
            self._filesystem = filesystem

        def delete_file(self, path: str) -> None:
            if path.endswith(".parquet"):
                raise OSError("Input/output error")
            self._filesystem.delete_file(path)

    opened = drops.open_filesystem
    monkeypatch.setattr(drops, "open_filesystem", lambda *given: (Stuck(opened(*given)[0]), opened(*given)[1]))
    done = command(lake, str(table.table_path), "--start-over", "--purge", "--yes")
    assert done.exit_code == 0, done.output
    assert "1 could not be: " in done.stdout
    assert "Input/output error" in done.stdout
    assert [path.suffix for path in on_disk(lake)] == [".parquet"]


# ---- a table that lives on ----


@KINDS
def test_a_table_that_is_tiered_starts_over_if_that_is_said(lake: Lake, keys: list[str]) -> None:
    table = lake.create("living", SCHEMA, keys=keys)
    rounds(lake, table, 2)
    before = on_disk(lake)
    with pytest.raises(InvalidRequestError, match="--start-over"):
        drop(lake.connection, table.table_path, purge=True)
    assert on_disk(lake) == before
    drop(lake.connection, table.table_path, start_over=True)
    assert LakeRegistry(lake.connection).latest(table.table_path) is None
    assert union_ids(lake, table) == list(range(20))
    [report] = tier_here(lake, table)
    assert (report.status, report.row_count) == (Status.TIERED, 20)
    check_lake(lake, table)


def test_a_table_that_is_not_tiered_any_more(lake: Lake) -> None:
    """It needs no flag, is read from the server then, and can be tiered later, from the beginning."""
    table = lake.create("off", SCHEMA)
    rounds(lake, table, 2)
    admin = lake.connection.get_admin()
    admin.alter_table(table.table_path, set_properties=TIERING_OFF)
    wanted = Drop(lake.connection, table.table_path, warehouse=str(lake.warehouse))
    assert (wanted.loss().on_server, wanted.loss().row_count) == (OnServer.OFF, 0)
    wanted.run(purge=True)
    assert union_ids(lake, table) == list(range(20))
    admin.alter_table(table.table_path, set_properties={"table.datalake.enabled": "true"})
    [report] = tier_here(lake, table)
    assert report.row_count == 20
    check_lake(lake, table)


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Lake]:
    """A server that keeps little of a log that is in the lake."""
    config = tmp_path / "fluss.toml"
    config.write_text(
        "log.segment.file-size = 1000\nlog.retention.check-interval-ms = 20\nlog.retention.size-bytes = 1\n"
    )
    with (
        FlussServer(tmp_path / "data", args=["--config", str(config)]) as server,
        FlussConnection.create(Config({"bootstrap.servers": server.bootstrap_servers})) as connection,
    ):
        connection.get_admin().create_database("short")
        yield Lake(server, connection, "short", tmp_path / "data" / "lake")


def log_start(table: FlussTable) -> int:
    [offset] = table.new_scan().bucket_offsets(OffsetSpec.earliest()).values()
    return offset


@pytest.mark.timeout(120)
def test_rows_that_the_log_does_not_have_any_more_are_lost_and_told(short: Lake) -> None:
    table = short.create("t", SCHEMA)
    for number in range(20):
        upsert(table, *range(10 * number, 10 * number + 10))
    tier_fully(short, table)
    upsert(table, 200)
    start = 200
    while log_start(table) < start:
        time.sleep(0.01)
    loss = Drop(short.connection, table.table_path).loss()
    assert (loss.on_server, loss.row_count, loss.totals.row_count) == (OnServer.TIERED, start, 200)
    asked = command(short, str(table.table_path), "--start-over", said="n\n")
    assert asked.exit_code == 1
    assert f"loses {start} older rows, which the server's log does not have any more" in asked.stderr
    assert union_ids(short, table) == list(range(201))
    assert command(short, str(table.table_path), "--start-over", said="y\n").exit_code == 0
    assert union_ids(short, table) == list(range(start, 201))
    tier_fully(short, table)
    assert union_ids(short, table) == list(range(start, 201))


def test_rows_of_dropped_partitions_are_lost_and_told(lake: Lake) -> None:
    table = lake.create("parts", SCHEMA, partition_keys=["day"])
    admin = lake.connection.get_admin()
    for day in ("d1", "d2"):
        admin.create_partition(table.table_path, {"day": day})
        upsert(table, *range(10), day=day)
    tier_here(lake, table)
    admin.drop_partition(table.table_path, {"day": "d2"})
    assert Drop(lake.connection, table.table_path).loss().row_count == 10
    drop(lake.connection, table.table_path, start_over=True)
    assert union_ids(lake, table) == list(range(10))


# ---- mishaps ----


def test_a_lake_that_is_lost_is_forgotten(lake: Lake, tmp_path: Path) -> None:
    table = lake.create("lost", SCHEMA)
    lost = replace(lake, warehouse=tmp_path / "lost")
    rounds(lost, table, 1)
    shutil.rmtree(lost.warehouse)
    upsert(table, 77)
    [report] = tier_here(lost, table)
    assert f"'fluss lake drop {table.table_path} --start-over'" in str(report.reason)
    with pytest.raises(InvalidRequestError, match="--start-over"):
        drop(lake.connection, table.table_path, warehouse=str(lost.warehouse))
    drop(lake.connection, table.table_path, warehouse=str(lost.warehouse), start_over=True)
    assert not lost.warehouse.exists()
    assert union_ids(lake, table) == [*range(10), 77]
    rounds(lake, table, 1, first=8)
    check_lake(lake, table)


def test_another_lake_that_is_named_by_mistake_changes_nothing(lake: Lake, tmp_path: Path) -> None:
    table = lake.create("typo", SCHEMA)
    rounds(lake, table, 1)
    lake.connection.get_admin().alter_table(table.table_path, set_properties=TIERING_OFF)
    with pytest.raises(InvalidRequestError, match="--start-over"):
        drop(lake.connection, table.table_path, warehouse=str(tmp_path / "typo"))
    lake.connection.get_admin().alter_table(table.table_path, set_properties={"table.datalake.enabled": "true"})
    check_lake(lake, table)


def test_what_is_registered_of_another_lake_stays(lake: Lake, tmp_path: Path) -> None:
    """The new table is tiered elsewhere; the old one, in the lake that the server names, goes."""
    table = lake.create("moved", SCHEMA)
    rounds(lake, table, 1)
    new = recreated(lake, table, [])
    elsewhere = replace(lake, warehouse=tmp_path / "elsewhere")
    rounds(elsewhere, new, 1)
    drop(lake.connection, new.table_path)
    check_lake(elsewhere, new)


@pytest.mark.parametrize("damage", [None, b"{}", b"", b"\xff\x00"], ids=["missing", "other", "empty", "bytes"])
def test_metadata_that_can_not_be_read(lake: Lake, damage: bytes | None) -> None:
    table = lake.create("damaged", SCHEMA)
    rounds(lake, table, 1)
    location = Path(iceberg_table(lake.warehouse, table.table_path).metadata_location)
    location.unlink() if damage is None else location.write_bytes(damage)
    asked = command(lake, str(table.table_path), "--start-over", said="n\n")
    assert "metadata can't be read" in asked.stderr
    with pytest.raises(InvalidRequestError, match="--purge"):
        drop(lake.connection, table.table_path, start_over=True, purge=True)
    drop(lake.connection, table.table_path, start_over=True)
    rounds(lake, table, 1, first=1)
    check_lake(lake, table)


def test_killed_between_the_lake_and_the_server(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left says how to go on, and the same call ends it."""
    table = lake.create("halfway", SCHEMA)
    rounds(lake, table, 1)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LakeRegistry, "forget", killed)
    with pytest.raises(KeyboardInterrupt):
        drop(lake.connection, table.table_path, start_over=True)
    monkeypatch.undo()
    [report] = tier_here(lake, table)
    assert f"'fluss lake drop {table.table_path} --start-over'" in str(report.reason)
    with pytest.raises(FlussError, match="does not have snapshot"):
        union_ids(lake, table)
    drop(lake.connection, table.table_path, start_over=True)
    assert union_ids(lake, table) == list(range(10))
    tier_here(lake, table)
    check_lake(lake, table)


@KINDS
def test_a_round_that_is_under_way(lake: Lake, keys: list[str]) -> None:
    """It can't commit to a table that is gone, and the next one has all rows."""
    table = lake.create("race", SCHEMA, keys=keys)
    rounds(lake, table, 1)
    upsert(table, 50)

    class Overtaken(LocalExecutor):
        def run_tasks(self, tasks: Any) -> Any:
            yield from super().run_tasks(tasks)
            drop(lake.connection, table.table_path, start_over=True, purge=True)

    [report] = tier(lake.connection, Overtaken(lake.connection, 1), tables=[table.table_path])
    assert report.status in (Status.LOST, Status.FAILED)
    assert LakeRegistry(lake.connection).latest(table.table_path) is None
    [report] = tier_here(lake, table)
    assert report.status is Status.TIERED
    check_lake(lake, table)


def test_a_server_that_can_not_forget(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apache Fluss: nothing is dropped unless its table is gone."""
    table = lake.create("apache", SCHEMA)
    rounds(lake, table, 1)
    monkeypatch.setattr(LakeRegistry, "can_forget", lambda _: False)
    with pytest.raises(InvalidRequestError, match="drop the table there first"):
        drop(lake.connection, table.table_path, start_over=True)
    check_lake(lake, table)
    lake.connection.get_admin().drop_table(table.table_path)
    drop(lake.connection, table.table_path, warehouse=str(lake.warehouse))
    with pytest.raises(NotFoundError):
        drop(lake.connection, table.table_path, warehouse=str(lake.warehouse))


def test_the_command_asks_and_tells(lake: Lake) -> None:
    table = lake.create("asked", SCHEMA)
    rounds(lake, table, 1)
    name = str(table.table_path)
    refused = command(lake, name, "--yes")
    assert refused.exit_code == 1
    assert "--start-over" in refused.stderr
    new = recreated(lake, table, [])
    done = command(lake, name, said="n\n")
    assert done.exit_code == 1
    assert "has another table of this name, so this loses 10 rows" in done.stderr
    assert iceberg_table(lake.warehouse, new.table_path).scan().to_arrow().num_rows == 10
    done = command(lake, name, said="y\n")
    assert done.exit_code == 0, done.output
    assert f"table {name} dropped from the lake; its files stay at {lake.warehouse}" in done.stdout
    assert "There is no table" in command(lake, name, "--yes").stderr


@pytest.mark.parametrize(
    ("path", "table_id"),
    [
        ("/data/tables/17/lake-offsets/0123.offsets", 17),
        ("s3://b/remote/lake/shop/or-ders-42/metadata/6f1c.offsets", 42),
        ("/data/lake/shop/orders/metadata/6f1c.offsets", None),
        ("", None),
        (None, None),
    ],
)
def test_the_table_that_offsets_are_of(path: str | None, table_id: int | None) -> None:
    assert table_id_of(path) == table_id
