"""Options of the server: the plain reader gives what click gives, and leaves the rest to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from fluss.server import command, process
from fluss.server.config import ServerConfig
from fluss.server.process import plain_values

PLAIN = [
    [],
    ["--port", "0"],
    ["--port", "65535", "--metrics-port", "00080"],
    ["--data-dir", "data", "--config", "/etc/fluss.toml", "--sasl-users", "a b"],
    ["--host", "::1", "--advertise", "example.org:1", "--metrics-host", ""],
    ["--durability", "os", "--durability", "fsync"],
    ["--data-dir", ""],
]
OTHERS = [
    ["--help"],
    ["--port"],
    ["--port", "65536"],
    ["--port", "-1"],
    ["--port", "9_123"],
    ["--port", "9" * 5_000],
    ["--port=0", "--host"],
    ["--port=0"],
    ["--durability", "OS"],
    ["--data-dir", "--port"],
    ["--nonsense", "1"],
    ["data", "1"],
]


def by_click(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    taken: dict[str, Any] = {}
    monkeypatch.setattr(command, "serve", taken.update)
    command.server.main(arguments, standalone_mode=False)
    return taken


@pytest.mark.parametrize("arguments", PLAIN)
def test_plain_options_are_read_as_click_reads_them(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = by_click(arguments, monkeypatch)
    assert plain_values(arguments) == expected
    assert all(isinstance(expected[name], Path | None) for name in ("data_dir", "sasl_users", "config"))


@pytest.mark.parametrize("arguments", OTHERS)
def test_all_else_is_left_to_click(arguments: list[str]) -> None:
    assert plain_values(arguments) is None


@pytest.mark.parametrize("arguments", [["--port", "65536"], ["--durability", "OS"], ["--nonsense", "1"], ["data", "1"]])
def test_mistakes_are_told_by_click(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(click.UsageError) as raised:
        by_click(arguments, monkeypatch)
    done = subprocess.run(
        [sys.executable, "-m", "fluss.server", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.endswith(f"Error: {raised.value.format_message()}\n")


@pytest.mark.parametrize("module", ["fluss.server.__main__", "fluss.cli.entry, fluss.server.process"])
def test_a_server_starts_without_what_it_may_never_need(module: str) -> None:
    unneeded = {"click", "crc32c", "filelock", "hashlib", "pyarrow", "rocksdict", "tomllib"}
    unneeded |= {"fluss.storage.backup.backup", "fluss.storage.damage.scrub_files", "fluss.storage.kv.rocks_files"}
    script = f"import sys, {module}, fluss.server.server; print({unneeded} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "set()\n"


def test_an_interrupt_while_it_starts_is_no_failure_to_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: ServerConfig) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "run", interrupted)
    with pytest.raises(SystemExit) as raised:
        process.serve(None)
    assert raised.value.code == 130
