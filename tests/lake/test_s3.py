"""A lake in S3: tiering, union reads, SQL, upkeep, and what is said when S3 refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector, FileType, S3FileSystem
from pyiceberg.catalog.sql import SqlCatalog

from fluss.lake.drop import drop
from fluss.lake.filesystem import with_environment
from fluss.lake.format import CATALOG_NAME
from fluss.lake.maintenance import clean_orphans, expire
from fluss.lake.options import LakeOptions
from fluss.lake.report import Status, TieringReport
from fluss.lake.status import lake_status
from fluss.lake.tiering.round import compact
from fluss.lake.tiering.service import tier
from fluss.lake.tiering.task import LocalExecutor
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.sync import Config, FlussConnection, FlussTable
from fluss.testing import FlussServer
from tests.kit.command import fluss, here
from tests.kit.lake.hostile import Listener, server_settings
from tests.kit.lake.lake import Lake
from tests.kit.lake.unions import WAYS, read_union
from tests.peers.objectstore import ObjectStore, object_store

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
BUCKET = "shop"
WAREHOUSE = f"s3://{BUCKET}/lake"
VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE")
KINDS = pytest.mark.parametrize("keys", [[], ["id"]], ids=["log", "primary key"])


@dataclass(frozen=True)
class Shop:
    """A server whose lake is in S3, where nobody gets in without the right login."""

    store: ObjectStore
    lake: Lake
    catalog: Path

    @property
    def variables(self) -> dict[str, str]:
        """The environment of somebody who may use it."""
        return {"AWS_ENDPOINT_URL": self.store.endpoint, **self.store.login.environment}

    @property
    def settings(self) -> dict[str, str]:
        """The same as settings of the lake."""
        login = self.store.login
        return {
            "s3.endpoint": self.store.endpoint,
            "s3.access-key-id": login.key_id,
            "s3.secret-access-key": login.secret,
        }

    def files(self) -> list[str]:
        """Everything in the bucket."""
        login = self.store.login
        there = S3FileSystem(
            access_key=login.key_id, secret_key=login.secret, region="us-east-1", endpoint_override=self.store.endpoint
        )
        found = there.get_file_info(FileSelector(BUCKET, recursive=True))
        return sorted(item.path for item in found if item.type == FileType.File)

    def rows(self, table: FlussTable) -> list[dict[str, Any]]:
        """What the lake has, as anybody reads it with pyiceberg alone."""
        where = {"uri": f"sqlite:///{self.catalog}", "warehouse": WAREHOUSE, "s3.region": "us-east-1", **self.settings}
        with SqlCatalog(CATALOG_NAME, **where) as catalog:
            path = table.table_path
            found = catalog.load_table((path.database_name, path.table_name)).scan().to_arrow()
        return sorted(found.select(SCHEMA.names).to_pylist(), key=lambda row: row["id"])

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command as a process, with this environment alone."""
        given = {**dict.fromkeys(VARIABLES, ""), "FLUSS_LAKE_TRUSTED": WAREHOUSE, "AWS_EC2_METADATA_DISABLED": "true"}
        return fluss(
            *arguments, bootstrap=self.lake.address, cwd=self.catalog.parent.parent, variables=given | variables
        )


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("s3")
    catalog = folder / "catalog" / "catalog.db"  # a server may name it: nothing else is in its folder
    settings = {"type": "sql", "uri": f"sqlite:///{catalog}", "warehouse": WAREHOUSE}
    with (
        object_store(folder) as store,
        FlussServer(folder / "data", args=server_settings(folder, settings)) as server,
        FlussConnection.create(
            Config({"bootstrap.servers": server.bootstrap_servers, "lake.trusted": WAREHOUSE})
        ) as connection,
    ):
        store.create_bucket(BUCKET)
        store.demand_login()
        connection.get_admin().create_database("s3")
        yield Shop(store, Lake(server, connection, "s3", Path("unused")), catalog)


@pytest.fixture(autouse=True)
def environment(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in shop.variables.items():
        monkeypatch.setenv(name, value)


def put(table: FlussTable, ids: range, day: str = "d1") -> None:
    is_keyed = table.get_table_info().has_primary_key()
    with (table.new_upsert() if is_keyed else table.new_append()).create_writer() as writer:
        writer.write_arrow(pa.table({"id": list(ids), "day": [day] * len(ids)}, SCHEMA))


def round_of(connection: FlussConnection, table: FlussTable, **arguments: Any) -> TieringReport:
    [report] = tier(connection, LocalExecutor(connection, 2), tables=[table.table_path], **arguments)
    return report


def tiered(shop: Shop, table: FlussTable, **arguments: Any) -> None:
    report = round_of(shop.lake.connection, table, **arguments)
    assert report.status is Status.TIERED, report


def rows_of(ids: range, day: str = "d1") -> list[dict[str, Any]]:
    return [{"id": number, "day": day} for number in ids]


# ---- what works ----


@KINDS
def test_tables_are_tiered_read_and_kept_in_order(shop: Shop, keys: list[str]) -> None:
    name = "keyed" if keys else "log"
    table = shop.lake.create(name, SCHEMA, keys=keys, partition_keys=None if keys else ["day"])
    if not keys:
        shop.lake.connection.get_admin().create_partition(table.table_path, {"day": "d1"})
    for start in range(0, 50, 10):
        put(table, range(start, start + 10))
        tiered(shop, table)
    assert shop.rows(table) == rows_of(range(50))
    put(table, range(50, 55))
    for way in WAYS:
        found = read_union(table, way).to_pylist()
        assert sorted(found, key=lambda row: row["id"]) == rows_of(range(55))
    [status] = lake_status(shop.lake.connection, "s3", name)
    assert (status.lag_rows, status.problem, status.totals.snapshot_count) == (5, None, 5)
    done = compact(shop.lake.connection, table.table_path, files_min=2)
    assert done.files_added == 1 if not keys else done.snapshot_id is None or done.files_added == 1
    before = shop.files()
    assert len(expire(shop.lake.connection, table.table_path, older_than_s=-60, keep_min=1)) >= 3
    assert clean_orphans(shop.lake.connection, table.table_path, older_than_s=-60).locations
    assert len(shop.files()) < len(before)
    assert shop.rows(table) == rows_of(range(50))
    drop(shop.lake.connection, table.table_path, start_over=True, purge=True)
    assert [path for path in shop.files() if f"/{name}/" in path] == []
    tiered(shop, table)
    assert shop.rows(table) == rows_of(range(55))


def test_commands_are_quiet(shop: Shop) -> None:
    """No word of a region that can't be found, and none of the rest."""
    table = shop.lake.create("quiet", SCHEMA)
    put(table, range(3))
    for command in (
        ["tier", "--local", "--table", "s3.quiet"],
        ["sql", "SELECT count(*) FROM s3.quiet", "-o", "csv"],
    ):
        done = shop.run(*command, **shop.variables)
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stderr.splitlines() if not line.endswith(" s")] == []
    assert shop.rows(table) == rows_of(range(3))


def test_settings_for_the_storage_of_the_servers_lake(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are added to what the server says, and nothing is taken from the environment."""
    for name in shop.variables:
        monkeypatch.setenv(name, "none")
    table = shop.lake.create("settings", SCHEMA)
    put(table, range(3))
    tiered(shop, table, catalog=shop.settings)
    assert shop.rows(table) == rows_of(range(3))
    put(table, range(3, 4))
    for way in WAYS:
        assert read_union(table, way, catalog=shop.settings).num_rows == 4
    given = [f"--catalog={key}={value}" for key, value in shop.settings.items()]
    command = ["lake", "status", "s3.settings", *given, "--lake-trusted", WAREHOUSE, "-o", "json"]
    assert '"problem": null' in here(*command, bootstrap=shop.lake.address).stdout


def test_where_s3_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lake's settings, then by the environment; other servers than Amazon's have a region by default."""
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert with_environment({"a": "b"}) == {"a": "b"}
    assert with_environment({"s3.endpoint": "http://x"}) == {"s3.endpoint": "http://x", "s3.region": "us-east-1"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu")
    assert with_environment({}) == {"s3.endpoint": "http://all", "s3.region": "eu"}
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3")
    monkeypatch.setenv("AWS_REGION", "us")
    assert with_environment({}) == {"s3.endpoint": "http://s3", "s3.region": "us"}
    own = {"s3.endpoint": "http://own", "client.region": "af"}
    assert with_environment(own) == own


def test_other_settings_name_another_lake(shop: Shop) -> None:
    """A credential for a catalog is for the catalog that is named with it, not for the one that a server names."""
    info = shop.lake.create("named", SCHEMA).get_table_info()
    with pytest.raises(InvalidRequestError, match="needs a warehouse"):
        LakeOptions.of(info, catalog={**shop.settings, "credential": "id:secret"})


# ---- what S3 refuses ----


FAILURES: Final = {
    "wrong secret": ({"AWS_SECRET_ACCESS_KEY": "no"}, "check AWS_ACCESS_KEY_ID"),
    "unknown key": ({"AWS_ACCESS_KEY_ID": "nobody"}, "S3 refuses access to the bucket shop"),
    "nobody there": ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "S3 does not answer: Failed to connect"),
    "no address": ({"AWS_ENDPOINT_URL": "http://127.0.0.1:x"}, "S3 failed for the bucket shop"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_one_line_says_what_to_check(shop: Shop, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = kind.replace(" ", "_")
    table = shop.lake.create(name, SCHEMA)
    put(table, range(3))
    tiered(shop, table)
    put(table, range(3))
    variables, text = FAILURES[kind]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    query = ["sql", f"SELECT count(*) FROM s3.{name}", "--lake-trusted", WAREHOUSE]
    done = here(*query, bootstrap=shop.lake.address)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"fluss sql: {text}" if text.startswith("S3") else "fluss sql: S3 refuses")
    assert text in line


def test_what_readers_and_jobs_in_python_are_told(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (shop.lake.create(name, SCHEMA) for name in ("told_old", "told_new"))
    put(old, range(3))
    tiered(shop, old)
    put(old, range(3))
    put(new, range(3))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "no")
    text = "S3 refuses access to the bucket shop"
    for table in (old, new):
        report = round_of(shop.lake.connection, table)
        assert report.status is Status.FAILED
        assert str(report.reason).startswith(text)
    for read in (
        lambda: read_union(old, "arrow"),
        lambda: compact(shop.lake.connection, old.table_path),
        lambda: expire(shop.lake.connection, old.table_path),
        lambda: clean_orphans(shop.lake.connection, old.table_path),
        lambda: drop(shop.lake.connection, old.table_path, start_over=True),
    ):
        with pytest.raises(FlussError, match=text):
            read()
    [status] = lake_status(shop.lake.connection, "s3", "told_old")
    assert (status.lag_rows, status.totals.file_count) == (3, None)
    assert str(status.problem).startswith(text)
    assert status.last_error is not None
    assert shop.store.login.secret not in status.last_error.error


def test_a_bucket_that_is_not_there(shop: Shop, tmp_path: Path) -> None:
    table = shop.lake.create("elsewhere", SCHEMA)
    put(table, range(3))
    nowhere = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "s3://none/lake"}
    report = round_of(shop.lake.connection, table, catalog=nowhere)
    assert report.status is Status.FAILED
    assert str(report.reason).startswith("There is no bucket none where S3 is: create it")


# ---- whom the login is for ----


def test_a_server_does_not_choose_where_the_login_is_used(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the endpoint nor a bucket that the client was not told of."""
    stranger = Listener("127.0.0.1")
    settings = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/data/lake/catalog.db",
        "warehouse": f"s3://{BUCKET}/theirs",
        "s3.endpoint": f"http://{stranger.address}",
        "s3.proxy-uri": f"http://{stranger.address}",
    }
    with FlussServer(tmp_path / "data", args=server_settings(tmp_path, settings)) as server:
        for trusted, status in (("", Status.FAILED), (f"s3://{BUCKET}/theirs", Status.TIERED)):
            config = Config({"bootstrap.servers": server.bootstrap_servers, "lake.trusted": trusted})
            with FlussConnection.create(config) as connection:
                lake = Lake(server, connection, "fluss", tmp_path)
                table = lake.create(f"t_{status.value[:1]}", SCHEMA)
                put(table, range(3))
                report = round_of(connection, table)
                assert report.status is status, report
    assert any("theirs/fluss/t_t/" in path for path in shop.files())
    assert not any("theirs/fluss/t_f/" in path for path in shop.files())
    assert "s3.endpoint" in caplog.text
    stranger.close()
    assert stranger.count == 0
