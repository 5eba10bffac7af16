"""Settings: files, flags, limits, and what is wrong with them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from fluss.model.errors import InvalidRequestError
from fluss.model.trust import Address
from fluss.server.config import ServerConfig, load_config, parse_address
from fluss.server.net.limits import Limits


def load(tmp_path: Path, text: str, **flags: object) -> ServerConfig:
    path = tmp_path / "fluss.toml"
    path.write_text(text)
    return load_config(path, flags)


def test_defaults() -> None:
    assert load_config(None, {"host": None}) == ServerConfig()


def test_file_then_flags(tmp_path: Path) -> None:
    text = """
        data-dir = "/srv/x"
        host = "0.0.0.0"
        port = 1
        default.bucket.number = 3
        log.segment.file-size = 4096
        [limits]
        frame_bytes_max = 1000
        connections-max = 7
    """
    config = load(tmp_path, text, port=2, advertise="h:3", data_dir=None)
    assert config == ServerConfig(
        Path("/srv/x"),
        "0.0.0.0",
        2,
        Address("h", 3),
        "fsync",
        3,
        4096,
        limits=Limits(frame_bytes_max=1000, connections_max=7),
    )


def test_operations(tmp_path: Path) -> None:
    text = """
        sasl-users = "users.txt"
        metrics-port = 9124
        metrics-host = "0.0.0.0"
        log.retention.size-bytes = 5
        log.retention.check-interval-ms = 6
        kv.snapshot.interval-ms = 7
        kv.memory-bytes = 100_000_000
        kv.open-stores-max = 8
        disk.free-bytes-min = 7
    """
    config = load(tmp_path, text, metrics_port=1)
    assert config == ServerConfig(
        sasl_users=Path("users.txt"),
        metrics_port=1,
        metrics_host="0.0.0.0",
        retention_size_bytes=5,
        retention_interval_ms=6,
        kv_snapshot_interval_ms=7,
        kv_memory_bytes=100_000_000,
        kv_open_stores_max=8,
        disk_free_bytes_min=7,
    )


def test_every_limit_can_be_set(tmp_path: Path) -> None:
    lines = [f"{field.name} = {field.default}" for field in fields(Limits)]
    assert load(tmp_path, "[limits]\n" + "\n".join(lines)).limits == Limits()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "unknown key 'prot'"),
        ("[server]\nport = 1", "unknown key 'server.port'"),
        ("port = 'x'", "port must be an integer"),
        ("port = true", "port must be an integer"),
        ("port = 70000", "port must be from 0 to 65535"),
        ("host = 1", "host must be a string"),
        ("durability = 'never'", "durability must be one of fsync, os"),
        ("default.bucket.number = 0", "default.bucket.number"),
        ("log.segment.file-size = 0", "log.segment.file-size"),
        ("advertise = 'h'", "HOST:PORT"),
        ("log.retention.size-bytes = -1", "log.retention.size-bytes"),
        ("log.retention.check-interval-ms = 0", "log.retention.check-interval-ms"),
        ("kv.snapshot.interval-ms = 0", "kv.snapshot.interval-ms"),
        ("kv.memory-bytes = 1000", "kv.memory-bytes must be at least"),
        ("kv.open-stores-max = 0", "kv.open-stores-max must be at least 1"),
        ("disk.free-bytes-min = -1", "disk.free-bytes-min"),
        ("metrics-port = 70000", "metrics-port must be from 0 to 65535"),
        ("sasl-users = 1", "sasl-users must be a string"),
        ("[limits]\nnonsense = 1", "unknown limit 'nonsense'"),
        ("[limits]\nconnections_max = 0", "limits.connections_max must be a positive integer"),
        ("[limits]\nconnections_max = 'x'", "limits.connections_max must be a positive integer"),
        ("[limits]\nframe_bytes_max = 1000000000", "limits.frame_bytes_max must be at most"),
        ("[limits]\nrequest_bytes_total_max = 1", "limits.request_bytes_total_max"),
        ("port = ", "is not TOML"),
        ("port = '\udcff'", "is not TOML"),
    ],
)
def test_bad_settings_say_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "fluss.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidRequestError, match=message):
        load_config(path, {})


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"nowhere\.toml can't be read: No such file"):
        load_config(tmp_path / "nowhere.toml", {})


@pytest.mark.parametrize(
    ("text", "address"),
    [("h:1", Address("h", 1)), ("10.0.0.1:65535", Address("10.0.0.1", 65535)), ("[::1]:9", Address("::1", 9))],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", ":", "h", "h:", ":1", "h:0", "h:65536", "h:x", "h:-1", "h:1²", "::1:9"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_address(text)


def test_settings_of_tables(tmp_path: Path) -> None:
    config = load(tmp_path, 'max.partition.num = 5\n"max.bucket.num" = 6\ndatalake.format = "iceberg"\n')
    assert (config.max_partition_num, config.max_bucket_num, config.datalake_format) == (5, 6, "iceberg")
    for line in ("max.partition.num = 0", "max.bucket.num = 0", 'datalake.format = "parquet"'):
        with pytest.raises(InvalidRequestError, match=line.split(" ")[0]):
            load(tmp_path, line)


def test_secrets_and_other_values_may_stand_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUSS_TEST_PORT", "17")
    monkeypatch.setenv("FLUSS_TEST_USER", "ada")
    (tmp_path / "password").write_text("two words\n")
    (tmp_path / "lake.properties").write_text("# key=no\nother = x\n key = a=b \n")
    text = f"""
        port = "${{env:FLUSS_TEST_PORT}}"
        [limits]
        connections-max = "${{env:FLUSS_TEST_PORT}}"
        [datalake.iceberg]
        uri = "postgresql://${{env:FLUSS_TEST_USER}}:${{file:{tmp_path}/lake.properties:key}}@db/${{other:1}}"
        password = "${{file:{tmp_path}/password}}"
    """
    config = load(tmp_path, text)
    assert (config.port, config.limits.connections_max) == (17, 17)
    assert config.datalake_iceberg == {"uri": "postgresql://ada:a=b@db/${other:1}", "password": "two words"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("${env:FLUSS_TEST_MISSING}", r"host needs \$\{env:FLUSS_TEST_MISSING\}: the environment has no such variable"),
        ("${file:/nowhere/secret}", r"host needs \$\{file:/nowhere/secret\}: No such file"),
        ("${file:TMP/pairs:gone}", "the file has no line that begins with it"),
        ("${file:TMP/bytes}", "it is not UTF-8"),
    ],
)
def test_what_stands_elsewhere_and_is_not_there(tmp_path: Path, value: str, said: str) -> None:
    (tmp_path / "pairs").write_text("key=hunter2\n")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(InvalidRequestError, match=said) as caught:
        load(tmp_path, f'host = "{value.replace("TMP", str(tmp_path))}"')
    assert "hunter2" not in caught.value.message


def test_a_secret_is_not_shown_where_a_number_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUSS_TEST_SECRET", "hunter2")
    for text in ('port = "${env:FLUSS_TEST_SECRET}"', '[limits]\nconnections-max = "${env:FLUSS_TEST_SECRET}"'):
        with pytest.raises(InvalidRequestError, match="must be an integer") as caught:
            load(tmp_path, text)
        assert "hunter2" not in caught.value.message
