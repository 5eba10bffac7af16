"""The command `fluss`."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from click.testing import CliRunner

from fluss.cli.main import COMMANDS, main


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, command in COMMANDS.items():
        assert name in result.output
        assert command.help in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_server_options() -> None:
    output = CliRunner().invoke(main, ["server", "--help"]).output
    for option in (
        "--data-dir",
        "--host",
        "--port",
        "--advertise",
        "--durability",
        "--sasl-users",
        "--metrics-port",
        "--config",
    ):
        assert option in output


def test_version() -> None:
    assert version("flussbett") in CliRunner().invoke(main, ["--version"]).output


def test_unknown_command() -> None:
    result = CliRunner().invoke(main, ["nonsense"])
    assert result.exit_code == 2
    assert "nonsense" in result.output


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom fluss.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'pyarrow', 'numpy', 'google.protobuf', 'asyncio', 'sqlite3', 'uvloop'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)
