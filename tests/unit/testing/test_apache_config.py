"""The real cluster's configuration files, and what its launcher refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.testing import ApacheFluss
from fluss.testing.apache import COORDINATOR, TABLET, ZOOKEEPER, Node, configuration_dir, write_configuration

ZOO = Node(ZOOKEEPER, 0, 20_001, 0, 0)
SERVERS = [
    Node(COORDINATOR, 0, 20_002, 20_003, 20_004),
    Node(TABLET, 0, 20_005, 20_006, 20_007),
    Node(TABLET, 1, 20_008, 20_009, 20_010),
]


def settings(folder: Path, node: Node) -> dict[str, str]:
    text = (configuration_dir(folder, node) / "server.yaml").read_text()
    return dict(line.split(": ", 1) for line in text.splitlines())


def test_every_server_has_its_own_place_and_the_given_settings(tmp_path: Path) -> None:
    write_configuration(tmp_path, ZOO, SERVERS, {"log.segment.file-size": "1mb", "data.file.x": "y"}, {})
    found = [settings(tmp_path, node) for node in SERVERS]
    assert {server["log.segment.file-size"] for server in found} == {"1mb"}
    assert len({server["data.dir"] for server in found}) == 3
    assert [server["tablet-server.id"] for server in found] == ["0", "0", "1"]
    assert found[2]["bind.listeners"] == "INTERNAL://127.0.0.1:20009, CLIENT://127.0.0.1:20008"
    assert not any(key.startswith("security.") for key in found[0])
    assert f"clientPort={ZOO.port}\n" in (configuration_dir(tmp_path, ZOO) / "zoo.cfg").read_text()


def test_users_get_a_listener_of_their_own(tmp_path: Path) -> None:
    write_configuration(tmp_path, ZOO, SERVERS, {}, {"alice": "a secret", "bob": "b"})
    found = settings(tmp_path, SERVERS[0])
    assert found["bind.listeners"].endswith("SASL://127.0.0.1:20004")
    assert found["security.sasl.plain.jaas.config"].endswith('required user_alice="a secret" user_bob="b";')


@pytest.mark.parametrize("password", ['a"b', "a\\b", "ä", "a\n"])
def test_a_password_that_would_break_the_file_is_refused(tmp_path: Path, password: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        write_configuration(tmp_path, ZOO, SERVERS, {}, {"alice": password})


@pytest.mark.parametrize("tablets", [0, 9])
def test_the_number_of_tablet_servers_is_limited(tmp_path: Path, tablets: int) -> None:
    with pytest.raises(ValueError, match="1 to 8"):
        ApacheFluss(tmp_path, tablets=tablets)


def test_a_cluster_without_users_has_no_sasl_address(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="sasl_users"):
        _ = ApacheFluss(tmp_path).sasl_bootstrap_servers


def test_a_lake_is_configured_unless_the_settings_say_otherwise(tmp_path: Path) -> None:
    config = {"datalake.iceberg.type": "rest", "log.segment.file-size": "1mb"}
    found = ApacheFluss(tmp_path, lake=tmp_path / "lake", config=config).config
    assert found == {
        "datalake.format": "iceberg",
        "datalake.iceberg.type": "rest",
        "datalake.iceberg.uri": f"jdbc:sqlite:{tmp_path}/lake/catalog.db",
        "datalake.iceberg.warehouse": f"{tmp_path}/lake",
        "log.segment.file-size": "1mb",
    }
    assert ApacheFluss(tmp_path).config == {}
