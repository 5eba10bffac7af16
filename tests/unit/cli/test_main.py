"""The command `fluss`."""

from __future__ import annotations

import subprocess
import sys
import types
from importlib.metadata import version

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

from fluss.cli.main import COMMANDS, LazyCommand, main
from fluss.model.errors import FlussError
from tests.kit.command import commands_of


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
    assert "Did you mean table" in CliRunner().invoke(main, ["tabel", "list"]).output


def test_help_has_an_example() -> None:
    lacking = []
    for path in commands_of(main):
        output = CliRunner().invoke(main, [*path, "--help"], prog_name="fluss").output
        if " ".join(["fluss", *path]) not in output.partition("Example")[2]:
            lacking.append(path)
    assert not lacking


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (FlussError("no\n  luck"), 1, "fluss broken: no luck\n"),
        (PermissionError(13, "Denied", "file"), 1, "fluss broken: [Errno 13] Denied: 'file'\n"),
        (pa.ArrowInvalid("what is this"), 1, "fluss broken: what is this\n"),
        (KeyboardInterrupt(), 130, ""),
        (click.UsageError("so not"), 2, "Error: so not\n"),
        (ZeroDivisionError("a bug"), 1, ""),
    ],
)
def test_what_a_command_raises(error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def broken() -> None:
        raise error

    monkeypatch.setitem(COMMANDS, "broken", LazyCommand("module_of_broken", "broken", ""))
    monkeypatch.setitem(sys.modules, "module_of_broken", types.SimpleNamespace(broken=broken))
    result = CliRunner().invoke(main, ["broken"], prog_name="fluss")
    assert result.exit_code == code
    assert result.stderr.endswith(line)
    # A bug keeps its traceback.
    assert isinstance(result.exception, ZeroDivisionError) == (line == "" and code == 1)


@pytest.mark.parametrize("module", ["fluss", "fluss.cli"])
def test_as_a_module(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "nonsense"], timeout=60, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: fluss [OPTIONS]")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom fluss.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'pyarrow', 'numpy', 'google.protobuf', 'asyncio', 'sqlite3', 'uvloop'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)
