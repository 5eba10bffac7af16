"""Which hosts and places a client uses because somebody else names them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fluss.model.config import Config
from fluss.model.tables.options import names_lake
from fluss.model.trust import Trust, UntrustedError, check_location, names_code, names_more_than_data


def trust(servers: str, *listed: str) -> Trust:
    return Trust.of(Config({"bootstrap.servers": servers, "lake.trusted": ", ".join(listed)}))


@pytest.mark.parametrize(
    ("servers", "address", "is_allowed"),
    [
        ("127.0.0.1:9123", "http://127.0.0.1:8181", True),
        ("127.0.0.1:9123", "http://localhost", True),
        ("127.0.0.1:9123", "http://LOCALHOST.:1/x", True),
        ("127.0.0.1:9123", "http://[::1]:1", True),
        ("127.0.0.1:9123", "http://127.0.0.2:8181", False),
        ("127.0.0.1:9123", "http://0.0.0.0:8181", False),
        ("127.0.0.1:9123", "http://127.1:8181", False),
        ("127.0.0.1:9123", "http://169.254.169.254/latest", False),
        ("file:/data", "http://127.0.0.1:8181", True),
        ("memory:x", "http://127.0.0.1:8181", True),
        ("fluss://Db.example:9123, other:1", "https://db.example/catalog", True),
        ("db.example:9123,other:1", "postgresql://other:5432/lake", True),
        ("db.example:9123", "http://127.0.0.1:8181", False),
        ("db.example:9123,127.0.0.1:1", "http://localhost:8181", False),
        ("db.example:9123", "http://xdb.example:8181", False),
        ("db.example:9123", "http://db.example.evil:8181", False),
        ("db.example:9123", "http://db.example@evil:8181", False),
        ("db.example:9123", "http://evil\\@db.example:8181", False),
        ("db.example:9123", "http://evil#@db.example:8181", False),
        ("db.example:9123", "http://evil?@db.example:8181", False),
        ("db.example:9123", "http://db.example%2eevil", False),
        ("db.example:9123", "postgresql://db.example,evil/lake", False),
        ("db.example:9123", "http://db.example:x", False),
        ("db.example:9123", "http:///x", False),
        ("db.example:9123", "http://[", False),
    ],
)
def test_hosts(servers: str, address: str, is_allowed: bool) -> None:
    assert trust(servers).allows_host(address) is is_allowed


@pytest.mark.parametrize(
    ("entry", "address", "is_allowed"),
    [
        ("lake.example", "http://lake.example:8181", True),
        ("lake.example:8181", "http://lake.example:8181/x", True),
        ("lake.example:8181", "http://lake.example:8182", False),
        ("lake.example:443", "https://lake.example", True),
        ("http://lake.example", "http://lake.example:80", True),
        ("http://lake.example", "https://lake.example", False),
        ("LAKE.example", "https://lake.Example", True),
        ("/lake.example", "http://lake.example", False),
        ("s3://lake.example", "http://lake.example", False),
    ],
)
def test_hosts_that_are_listed(entry: str, address: str, is_allowed: bool) -> None:
    assert trust("db:1", "/x", entry).allows_host(address) is is_allowed


@pytest.mark.parametrize(
    ("place", "is_allowed"),
    [
        ("s3://bucket/lake", True),
        ("s3a://bucket/lake/db/t", True),
        ("s3://bucket/lake2", False),
        ("s3://bucket", False),
        ("s3://bucket/lake/../x", False),
        ("s3://bucket/lake/%2e%2e/x", False),
        ("s3://bucket/lake#x", False),
        ("gs://bucket/lake", False),
        ("/bucket/lake", False),
    ],
)
def test_buckets_that_are_listed(place: str, is_allowed: bool) -> None:
    assert trust("127.0.0.1:1", "s3://bucket/lake/").allows_bucket(place) is is_allowed
    assert not trust("127.0.0.1:1").allows_bucket(place)


def test_paths_of_a_server(tmp_path: Path) -> None:
    own, remote = trust("127.0.0.1:1"), trust("db:1")
    for path in (tmp_path, tmp_path / "not" / "there", f"file://{tmp_path}", f"/{tmp_path}", tmp_path / "a b% c"):
        assert own.allows_path(str(path)), path
        assert not remote.allows_path(str(path))
        assert trust("db:1", str(tmp_path)).allows_path(str(path))
    for path in (
        f"{tmp_path}/../x",
        f"{tmp_path}/x#y",
        f"file://{tmp_path}/%2e%2e/x",
        f"file://elsewhere{tmp_path}",
        f"{tmp_path}/a\nb",
        "relative",
        "",
        "/dev/shm",
        "//dev/shm",
        "/proc/self/cwd",
        f"http://{tmp_path}",
    ):
        assert not own.allows_path(path), path


def test_paths_of_another_user(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    if os.geteuid() == 0:
        os.chown(theirs, 12_345, 12_345)
    else:
        theirs = Path("/")
    (tmp_path / "link").symlink_to(theirs)
    for path in (theirs, theirs / "lake", tmp_path / "link" / "lake"):
        assert not trust("127.0.0.1:1").allows_path(str(path))
        assert trust("127.0.0.1:1", str(theirs)).allows_path(str(path))


def test_a_directory_that_the_user_named(tmp_path: Path) -> None:
    named = tmp_path / "own #1"
    assert trust(named.as_uri()).allows_path(str(named / "lake"))
    assert not trust("127.0.0.1:1").allows_path(str(named / "lake"))


def test_files_of_a_lake(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "link").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "lake" / "pipe")
    places = [str(tmp_path / "lake")]
    check_location(str(tmp_path / "lake" / "day=a%3Ab" / "x.parquet"), places)
    for name in ("link/x", "../x", "pipe"):
        with pytest.raises(UntrustedError):
            check_location(f"{tmp_path}/lake/{name}", places)
    with pytest.raises(UntrustedError, match=r'lake\.trusted = "s3://bucket/a,s3://bucket/db/t"'):
        check_location("s3://bucket/db/t/metadata/0.json", places, ["s3://bucket/a"])


def test_the_line_has_what_was_listed_before() -> None:
    error = trust("db:1", "/x").untrusted("The server", ["http://u:p@lake:8181/x", "file:///a%20b", "s3://b/c"])
    assert 'lake.trusted = "/x,lake:8181,/a b,s3://b/c"' in str(error)


@pytest.mark.parametrize(
    "key",
    [
        "table.datalake.iceberg.uri",
        "table.datalake.iceberg.x",
        "Table.Datalake.Iceberg.URI",
        " table.datalake.iceberg.uri",
        "table.datalake.paimon.metastore",
        "table.datalake.storage.lance.root",
        "iceberg.py-io-impl",
        "iceberg.write.py-location-provider.impl",
        "ICEBERG.io_impl",
        "iceberg.write.data.path",
        "iceberg.s3.endpoint",
        "iceberg.s3.access-key-id",
        "paimon.metastore.uri",
        "datalake.iceberg.warehouse",
        "lance.storage.token",
    ],
)
def test_keys_that_are_the_operators(key: str) -> None:
    assert names_lake(key)


@pytest.mark.parametrize(
    "key",
    [
        "table.datalake.enabled",
        "table.datalake.freshness",
        "table.log.ttl",
        "iceberg.write.format.default",
        "iceberg.commit.retry.num-retries",
        "iceberg.write.parquet.bloom-filter-enabled.column.url",
        "paimon.file.format",
        "owner",
        "my.path",
        "key",
    ],
)
def test_keys_that_are_the_users(key: str) -> None:
    assert not names_lake(key)


def test_keys_by_their_words() -> None:
    assert names_code("s3.retry-strategy-impl")
    assert not names_code("write.implicit")
    assert names_more_than_data("rest.sigv4-enabled")
    assert not names_more_than_data("s3.region")
