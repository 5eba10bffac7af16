"""What a table, a server or a catalog says is neither run nor opened nor dialled, unless the reader allows it."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fluss.lake.format import CATALOG_NAME
from fluss.lake.maintenance import clean_orphans
from fluss.lake.options import LakeOptions
from fluss.lake.report import Status
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.sync import Config, FlussConnection, Schema, TableDescriptor
from fluss.testing import FlussServer
from tests.kit.lake.attack import COLUMNS, PATH, Attack, attacked, foreign_keys, of_service
from tests.kit.lake.evil import code_keys
from tests.kit.lake.hostile import FOREIGN, HostileCatalog, Listener, hostile_catalog, server_settings

QUERY = "SELECT count(*) AS n FROM t"


@pytest.fixture
def foreign() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()
    assert listener.count == 0


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[HostileCatalog]:
    with hostile_catalog(tmp_path / "catalog") as running:
        yield running


@pytest.mark.parametrize("kind", ["code", "hosts"])
def test_a_catalog_that_names_code_or_hosts(
    tmp_path: Path, catalog: HostileCatalog, foreign: Listener, kind: str
) -> None:
    """Tiering, union reads and SQL work with what is data in its answers."""
    mark = tmp_path / "mark"
    catalog.config = code_keys(mark) if kind == "code" else foreign_keys(foreign.address)
    catalog.table_config = {**catalog.config, "write.data.path": "/nowhere"}
    with attacked(tmp_path, of_service(catalog)) as attack:
        attack.write(10)
        attack.run("tier", "--local")
        assert not mark.exists()
        attack.write(10)
        assert attack.tier().status is Status.TIERED
        attack.write(2)
        assert attack.rows() == 22
        assert "22" in attack.run("sql", QUERY)
        assert attack.rows(catalog=of_service(catalog)) == 22
        assert not mark.exists()
    assert any("/tables/t" in request for request in catalog.requests)


def test_a_catalog_that_redirects(tmp_path: Path, catalog: HostileCatalog, foreign: Listener) -> None:
    catalog.redirect = f"http://{foreign.address}/v1/config"
    with attacked(tmp_path, of_service(catalog)) as attack:
        attack.write(1)
        report = attack.tier()
        assert report.status is Status.FAILED
        assert f'lake.trusted = "{foreign.address}"' in str(report.reason)


@pytest.mark.parametrize("with_login", [False, True], ids=["alone", "with credentials"])
def test_a_catalog_that_chooses_where_s3_is(
    tmp_path: Path, catalog: HostileCatalog, foreign: Listener, monkeypatch: pytest.MonkeyPatch, with_login: bool
) -> None:
    """The user's own credentials sign for nobody who was not asked for; those of the catalog go to no other host."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own")
    login = {"s3.access-key-id": "theirs", "s3.secret-access-key": "theirs"} if with_login else {}
    catalog.table_config = {"s3.endpoint": f"http://{foreign.address}", **login}
    with attacked(tmp_path, of_service(catalog)) as attack:
        attack.write(1)
        report = attack.tier()
        if with_login:
            assert f'lake.trusted = "{foreign.address}"' in str(report.reason)
        else:
            assert report.status is Status.TIERED, report
            loaded = LakeOptions.from_properties(of_service(catalog)).open().load_table(PATH)
            assert loaded is not None
            assert "s3.endpoint" not in loaded.io_properties


def test_a_catalog_whose_tables_lie_elsewhere(tmp_path: Path, catalog: HostileCatalog) -> None:
    """Not even a clean-up looks there."""
    outside = tmp_path / "precious"
    (outside / "data").mkdir(parents=True)
    (outside / "data" / "letter.parquet").write_text("dear")
    os.utime(outside / "data" / "letter.parquet", (0, 0))
    catalog.table_location = str(outside)
    with attacked(tmp_path, of_service(catalog)) as attack:
        attack.write(3)
        report = attack.tier()
        assert report.status is Status.FAILED
        assert f'lake.trusted = "{outside}"' in str(report.reason)
        attack.register()
        with pytest.raises(FlussError, match=r"lake\.trusted"):
            attack.rows()
        with pytest.raises(FlussError, match=r"lake\.trusted"):
            clean_orphans(attack.connection, PATH, older_than_s=0)
    assert [path.name for path in (outside / "data").iterdir()] == ["letter.parquet"]


def test_a_server_that_names_code(tmp_path: Path) -> None:
    """Its keys are left out, its lake is used."""
    mark = tmp_path / "mark"
    with attacked(tmp_path, code_keys(mark)) as attack:
        attack.write(5)
        said = attack.run("tier", "--local")
        assert not mark.exists()
        assert "py-io-impl" in said
        attack.write(1)
        assert attack.rows() == 6
        assert "6" in attack.run("sql", QUERY)
    assert not mark.exists()


def foreign_lakes(address: str) -> dict[str, dict[str, str]]:
    return {
        "service": {"type": "rest", "uri": f"http://{address}"},
        "service with a name before": {"type": "rest", "uri": f"http://127.0.0.1:1@{address}"},
        "database": {"type": "jdbc", "uri": f"jdbc:postgresql://{address}/lake"},
        "service, in capitals": {"type": "REST", "uri": f"HTTP://{address}/"},
        "bucket": {"type": "sql", "warehouse": "s3://theirs/lake", "uri": f"postgresql+psycopg2://u:p@{address}/lake"},
    }


@pytest.mark.parametrize("kind", foreign_lakes("x"))
def test_a_server_that_names_another_host(tmp_path: Path, foreign: Listener, kind: str) -> None:
    with attacked(tmp_path, foreign_lakes(foreign.address)[kind]) as attack:
        attack.write(1)
        report = attack.tier()
        assert report.status is Status.FAILED
        assert foreign.address in str(report.reason)
        attack.register()
        for read in (attack.rows, lambda: clean_orphans(attack.connection, PATH, older_than_s=0)):
            with pytest.raises(InvalidRequestError, match=f"{FOREIGN}"):
                read()
        if kind == "service":
            assert foreign.address in attack.run("tier", "--local", status=1)
            assert foreign.address in attack.run("sql", QUERY, status=1)
        assert attack.rows(mode="none") == 1


def test_a_server_that_names_paths(tmp_path: Path) -> None:
    """Neither tiering nor reading makes or changes anything; `tests/unit/lake/test_options.py` has more of them."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "letter").write_text("dear")
    with closing(sqlite3.connect(folder / "precious.db")) as connection:
        connection.execute("CREATE TABLE letters (text)")
    before = contents(folder)
    with attacked(tmp_path, {"warehouse": str(folder)}) as attack:
        attack.write(1)
        attack.register()
        for lake in ({"warehouse": str(folder)}, {"uri": f"sqlite:///{folder}/precious.db", "warehouse": str(folder)}):
            server_settings(tmp_path, lake)
            attack.server.restart()
            report = attack.tier()
            assert report.status is Status.FAILED
            assert "The server names" in str(report.reason)
            with pytest.raises(InvalidRequestError, match="The server names"):
                attack.rows()
    assert contents(folder) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


def test_what_is_listed_is_used(tmp_path: Path) -> None:
    """By a setting, by an option, by the environment, by the file of settings."""
    with hostile_catalog(tmp_path / "catalog", FOREIGN) as catalog:
        address = catalog.uri.removeprefix("http://")
        with attacked(tmp_path, of_service(catalog), **{"lake.trusted": f"/else, {address}"}) as attack:
            attack.write(4)
            assert attack.tier().status is Status.TIERED
            assert attack.rows() == 4
            line = f'lake.trusted = "{address}"'
            said = attack.run("sql", QUERY, status=1)
            assert line in said
            assert "4" in attack.run("sql", QUERY, FLUSS_LAKE_TRUSTED=FOREIGN)
            assert "4" in attack.run("sql", QUERY, "--lake-trusted", address)
            (tmp_path / "fluss.toml").write_text(f"[client]\n{line}\n")
            assert "4" in attack.run("sql", QUERY)


def test_a_lake_that_the_user_names_is_used(tmp_path: Path) -> None:
    with hostile_catalog(tmp_path / "catalog", FOREIGN) as catalog, attacked(tmp_path, {"type": "sql"}) as attack:
        attack.write(4)
        assert attack.tier(catalog=of_service(catalog)).status is Status.TIERED
        assert attack.rows(catalog=of_service(catalog)) == 4
        named = [f"--catalog={key}={value}" for key, value in of_service(catalog).items()]
        assert "4" in attack.run("sql", QUERY, *named)


def test_properties_that_somebody_put_into_the_lake(
    tmp_path: Path, foreign: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a table in a catalog that is trusted; they are left out and told."""
    from pyiceberg.catalog.sql import SqlCatalog

    mark = tmp_path / "mark"
    with attacked(tmp_path, {}) as attack:
        attack.write(4)
        assert attack.tier().status is Status.TIERED
        with closing(SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{tmp_path}/data/lake/catalog.db")) as lake:
            changed = lake.load_table(("fluss", "t")).transaction()
            changed.set_properties({**code_keys(mark), **foreign_keys(foreign.address)}).commit_transaction()
        mark.unlink(missing_ok=True)  # whoever sets them runs them himself
        attack.write(4)
        assert attack.tier().status is Status.TIERED
        attack.write(1)
        assert attack.rows() == 9
        attack.run("sql", QUERY)
        clean_orphans(attack.connection, PATH, older_than_s=0)
    assert not mark.exists()
    assert "write.py-location-provider.impl, which is not followed" in caplog.text


def test_files_outside_of_the_lake(tmp_path: Path) -> None:
    """A manifest that names a file elsewhere, or one that is a pipe."""
    from pyiceberg.catalog.sql import SqlCatalog

    with attacked(tmp_path, {}) as attack:
        attack.write(4)
        assert attack.tier().status is Status.TIERED
        with closing(SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{tmp_path}/data/lake/catalog.db")) as lake:
            [task] = lake.load_table(("fluss", "t")).scan().plan_files()
        file = Path(task.file.file_path)
        stolen = tmp_path / "stolen.parquet"
        file.rename(stolen)
        file.symlink_to(stolen)
        with pytest.raises(InvalidRequestError, match=r"lake\.trusted"):
            attack.rows()
        file.unlink()
        os.mkfifo(file)
        for read in (attack.rows, lambda: attack.table.new_scan().union().to_duckdb().fetchall()):
            with pytest.raises(InvalidRequestError, match="a pipe"):
                read()
        with pytest.raises(OSError, match="No such device"):  # nobody waits at its other end
            os.open(file, os.O_WRONLY | os.O_NONBLOCK)


@pytest.mark.parametrize("address", ["host:port", "file:", "memory:"])
def test_a_server_of_ones_own_needs_no_settings(tmp_path: Path, address: str, new_name: Callable[[str], str]) -> None:
    folder = tmp_path / "with a blank, 100%"
    with FlussServer(folder) as server:
        addresses = {
            "host:port": server.bootstrap_servers,
            "file:": (tmp_path / "own #1").as_uri(),
            "memory:": f"memory:{new_name('trust')}",
        }
        with FlussConnection.create(Config({"bootstrap.servers": addresses[address]})) as connection:
            descriptor = TableDescriptor(Schema(COLUMNS), bucket_count=1, properties={"table.datalake.enabled": "true"})
            connection.get_admin().create_table(PATH, descriptor)
            attack = Attack(server, connection, tmp_path / "mark")
            attack.write(3)
            assert attack.tier().status is Status.TIERED
            attack.write(1)
            assert attack.rows() == 4
            assert json.loads(attack.table.new_scan().union().to_duckdb().count("*").to_df().to_json())
