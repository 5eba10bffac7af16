"""Where commands find their server, and what the server makes of the same file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fluss.cli import connecting
from fluss.cli.connecting import client_settings
from fluss.model.errors import FlussError
from fluss.model.trust import parse_bootstrap
from fluss.server.config import load_config


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_default() -> None:
    settings = client_settings(None, None, None, None)
    assert settings.bootstrap_servers == "127.0.0.1:9123"
    assert settings.connect_timeout_ms == 5_000
    assert settings.security_protocol == "PLAINTEXT"


def test_a_file_is_for_both_sides(tmp_path: Path) -> None:
    file = tmp_path / "fluss.toml"
    file.write_text(
        'port = 9999\n[client]\nbootstrap.servers = "a:1"\n"connect-timeout" = 7\n'
        "[client.scanner.log]\nmax-poll-records = 3\n"
    )
    for given in (None, str(file)):
        settings = client_settings(None, None, None, given)
        assert settings.bootstrap_servers == "a:1"
        assert settings.connect_timeout_ms == 7
        assert settings.scanner_log_max_poll_records == 3
    assert client_settings("b:2", None, None, None).bootstrap_servers == "b:2"
    assert load_config(file, {}).port == 9999


def test_a_user_logs_in() -> None:
    settings = client_settings(None, "ada", "secret", None)
    assert settings.security_protocol == "sasl"
    assert (settings.security_sasl_username, settings.security_sasl_password) == ("ada", "secret")


def test_a_password_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.prompt", lambda *_, **__: "typed")
    monkeypatch.setattr(connecting, "TERMINAL", os.devnull)
    assert client_settings(None, "ada", "", None).security_sasl_password == "typed"
    monkeypatch.setattr(connecting, "TERMINAL", str(Path("nowhere", "tty")))
    with pytest.raises(FlussError, match="no terminal to ask for the password of 'ada' at: set FLUSS_PASSWORD"):
        client_settings(None, "ada", "", None)


def test_addresses_of_other_protocols() -> None:
    with pytest.raises(FlussError, match="it is no http:// address; write 'localhost:9123'"):
        parse_bootstrap("http://localhost:9123/")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[client]\nnonsense = 1\n", "Unknown configuration key 'nonsense'"),
        ("client = 5\n", "must be a table"),
        ("[client", "is not TOML"),
        ('[client]\nconnect-timeout = "soon"\n', "Invalid value 'soon' for connect-timeout"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "fluss.toml").write_text(text)
    with pytest.raises(FlussError) as caught:
        client_settings(None, None, None, None)
    assert "fluss.toml" in caught.value.message
    assert problem in caught.value.message


def test_a_file_that_is_named_must_be_there() -> None:
    with pytest.raises(FlussError, match=r"other\.toml can't be read"):
        client_settings(None, None, None, "other.toml")


def test_a_password_may_stand_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUSS_TEST_PASSWORD", "hunter2")
    (tmp_path / "fluss.toml").write_text('[client]\n"security.sasl.password" = "${env:FLUSS_TEST_PASSWORD}"\n')
    assert client_settings(None, None, None, None).security_sasl_password == "hunter2"
    monkeypatch.delenv("FLUSS_TEST_PASSWORD")
    with pytest.raises(FlussError, match=r"fluss\.toml.*the environment has no such variable"):
        client_settings(None, None, None, None)
