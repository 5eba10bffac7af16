"""Data directories of every released format: they open, with all that was in them, and go on from there.

For each format there are two directories in `format-<version>`, one after a clean stop and one after a kill, with what
a client read from them; `make.py` has made them with the last program of that format.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import fluss.sync
from fluss.api.operations import LakeRegistry
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.staging import StagedTask
from fluss.storage import directory
from fluss.storage.directory import FORMAT_VERSION, VERSION_NAME, DataDirectory, DataDirectoryError
from fluss.storage.kv.snapshot_files import list_snapshots
from fluss.storage.store import Storage, StorageOptions
from fluss.sync import FlussConnection
from fluss.testing import FlussServer
from tests.golden.content import DATABASE, QUERY, append, describe, rows_from, upsert
from tests.golden.make import LEASE

HERE: Final = Path(__file__).parent
IMAGES: Final = sorted(HERE.glob("format-*/*.tar.xz"))
NEW_ID: Final = 1_000


@pytest.fixture(params=IMAGES, ids=lambda path: f"{path.parent.name}-{path.name.removesuffix('.tar.xz')}")
def image(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def unpack(image: Path, target: Path) -> Path:
    """The data directory, with staged rows as fresh as when it was left: they expire after a day."""
    with tarfile.open(image) as archive:
        archive.extractall(target, filter="data")
    for path in target.glob("data/tables/*/staging/*"):
        path.touch()
    return target / "data"


def content_of(image: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(image.with_name(image.name.replace(".tar.xz", ".json")).read_text())
    return content


def described(server: FlussServer, like: dict[str, Any]) -> dict[str, Any]:
    """All that a client reads, without what is there besides: coming partitions, options that were not known."""
    with fluss.sync.connect(server.bootstrap_servers) as connection:
        found = describe(connection)
    for name, before in like.items():
        for part in ("properties", "partitions", "log"):
            found[name][part] = {key: value for key, value in found[name][part].items() if key in before[part]}
    return found


def test_everything_is_there_and_goes_on(tmp_path: Path, image: Path) -> None:
    data_dir, expected = unpack(image, tmp_path), content_of(image)
    with FlussServer(data_dir) as server:
        assert described(server, expected) == expected
        assert (data_dir / VERSION_NAME).read_text() == f"{FORMAT_VERSION}\n"
        with fluss.sync.connect(server.bootstrap_servers) as connection:
            go_on_staging(connection)
            go_on_tiering(connection, data_dir)
            write_to_all(connection, expected)
            ids_go_on(connection, expected)
            more = describe(connection)
        server.terminate()
        server.start()
        assert described(server, more) == more


def go_on_staging(connection: FlussConnection) -> None:
    """A batch that was committed is known again, one that was staged can be committed."""
    for name in ("staged", "staged_keys"):
        table = connection.get_table(fluss.TablePath(DATABASE, name))
        schema = arrow_schema(table.get_table_info().schema)
        write = table.new_staged_write(QUERY, 1)
        tasks = []
        for task in range(2):
            writer = write.create_writer(task, 1)
            writer.write_arrow_batch(pa.RecordBatch.from_pylist(rows_from(10 + task * 3, 3), schema))
            tasks.append(writer.finish())
        write.commit(tasks)
        assert write.is_repeated
        write = table.new_staged_write(QUERY, 2)
        write.commit([StagedTask(task, 0, 1) for task in range(2)])
        assert not write.is_repeated
        found = describe(connection)[name]["log"]["/0"]["records"]
        ids = [row["id"] for *_, row in found]
        assert sorted(ids) == sorted(batch * 10 + number for batch in range(3) for number in range(6))


def go_on_tiering(connection: FlussConnection, data_dir: Path) -> None:
    """The offsets that were prepared for the next lake snapshot can still be registered."""
    info = connection.get_admin().get_table_info(fluss.TablePath(DATABASE, "lake"))
    files = (data_dir / "tables" / str(info.table_id) / "lake-offsets").iterdir()
    newest = max(files, key=lambda path: path.stat().st_mtime_ns)
    LakeRegistry(connection).commit(info, 13, str(newest), {})
    assert connection.get_admin().get_latest_lake_snapshot(info.table_path).snapshot_id == 13


def write_to_all(connection: FlussConnection, expected: dict[str, Any]) -> None:
    """Each table takes one more row, which follows all before it."""
    for name, before in expected.items():
        table = connection.get_table(fluss.TablePath(DATABASE, name))
        partition = {"day": min(before["partitions"])} if before["partitions"] else {}
        row = {"id": NEW_ID, **partition}
        if name == "numbered":
            upsert(table, [row], ["id"])
        elif "rows" in before:
            upsert(table, [row | ({"score": 1} if name == "versioned" else {})])
        else:
            append(table, [row])
    for name, after in describe(connection).items():
        assert any(row["id"] == NEW_ID for log in after["log"].values() for *_, row in log["records"]), name
        if "rows" in after:
            assert any(row["id"] == NEW_ID for row in after["rows"]), name


def ids_go_on(connection: FlussConnection, expected: dict[str, Any]) -> None:
    """No id is given out twice: of tables, partitions, schemas and numbered rows."""
    numbers = [row["number"] for row in describe(connection)["numbered"]["rows"]]
    known = [row["number"] for row in expected["numbered"]["rows"]]
    assert max(numbers) > max(known)
    assert len(numbers) == len(set(numbers)) == len(known) + 1
    admin = connection.get_admin()
    path = fluss.TablePath(DATABASE, "made_later")
    admin.create_table(path, fluss.TableDescriptor(fluss.Schema(pa.schema([("id", pa.int32())]))))
    assert admin.get_table_info(path).table_id > max(table["table_id"] for table in expected.values())
    admin.drop_table(path)
    parts = fluss.TablePath(DATABASE, "parts")
    admin.create_partition(parts, {"day": "made-later"})
    partitions = {info.partition_name: info.partition_id for info in admin.list_partition_infos(parts)}
    assert partitions["made-later"] > max(
        number for table in expected.values() for number in table["partitions"].values()
    )


def test_what_can_be_rebuilt_is_rebuilt(tmp_path: Path, image: Path) -> None:
    """Without stores, indexes and writer states the logs and snapshots are enough."""
    data_dir, expected = unpack(image, tmp_path), content_of(image)
    for store in data_dir.glob("tables/**/kv"):
        shutil.rmtree(store)
    for pattern in ("tables/**/*.index", "tables/**/*.writers"):
        for path in data_dir.glob(pattern):
            path.unlink()
    with FlussServer(data_dir) as server:
        assert described(server, expected) == expected


async def test_leases_and_queries_are_kept(tmp_path: Path, image: Path) -> None:
    storage = await Storage.open(StorageOptions(unpack(image, tmp_path)))
    try:
        leased = storage.catalog.leases()[LEASE].snapshots
        assert len(leased) == 2
        for bucket, snapshot_id in leased.items():
            snapshots = list_snapshots(storage.bucket_path(bucket))
            assert snapshot_id in [snapshot.snapshot_id for snapshot in snapshots]
            assert len(snapshots) == 2
        queries = {query: entry.committed for (_, query), entry in storage.catalog.staged_queries().items()}
        assert queries == {QUERY: 1}
    finally:
        await storage.close()


def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path, image: Path) -> None:
    data_dir = unpack(image, tmp_path)
    (data_dir / VERSION_NAME).write_text(f"{FORMAT_VERSION + 1}\n")
    before = {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")}
    with pytest.raises(DataDirectoryError, match=f"format version {FORMAT_VERSION + 1}.*Upgrade flussbett"):
        DataDirectory.open(data_dir)
    assert {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")} == before


async def test_an_older_program_refuses_what_this_one_has_opened(
    tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = unpack(image, tmp_path)
    known_then = min(int((data_dir / VERSION_NAME).read_text()), FORMAT_VERSION - 1)
    await (await Storage.open(StorageOptions(data_dir))).close()
    monkeypatch.setattr(directory, "FORMAT_VERSION", known_then)
    with pytest.raises(DataDirectoryError, match="Upgrade flussbett"):
        await Storage.open(StorageOptions(data_dir))


def test_there_is_a_directory_of_each_format_from_2_on() -> None:
    """One of the current format comes with the release that raises it."""
    made = {path.parent.name for path in IMAGES}
    assert made >= {f"format-{version}" for version in range(2, FORMAT_VERSION)}
