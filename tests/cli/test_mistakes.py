"""Every command as a process, with what people get wrong: one helpful line and an exit code, never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.kit.command import fluss, leaves

NOBODY: Final = "127.0.0.1:1"

# What a command that talks to a server needs besides its address, and a table that is not there instead.
OF_SERVERS: Final = {
    "database create": (["d"], None),
    "database describe": (["d"], None),
    "database drop": (["d", "--yes"], None),
    "database list": ([], None),
    "table alter": (["t", "--set", "owner=me"], ["shop.no", "--set", "owner=me"]),
    "table create": (["t", "--schema", "id int"], None),
    "table define": (["t"], ["shop.no"]),
    "table describe": (["t"], ["shop.no"]),
    "table drop": (["t", "--yes"], ["shop.no", "--yes"]),
    "table list": ([], None),
    "partition create": (["t", "day=1"], ["shop.no", "day=1"]),
    "partition drop": (["t", "day=1", "--yes"], ["shop.no", "day=1", "--yes"]),
    "partition list": (["t"], ["shop.no"]),
    "offsets": (["t"], ["shop.no"]),
    "append": (["t", "rows.csv"], ["shop.no", "rows.csv"]),
    "upsert": (["t", "rows.csv"], ["shop.no", "rows.csv"]),
    "delete": (["t", "--key", "id=1"], ["shop.no", "--key", "id=1"]),
    "scan": (["t"], ["shop.no"]),
    "tail": (["t"], ["shop.no"]),
    "changes": (["t"], ["shop.no"]),
    "lookup": (["t", "id=1"], ["shop.no", "id=1"]),
    "sql": (["SELECT 1 FROM t"], ["SELECT 1 FROM shop.no"]),
    "tier": (["--local", "--table", "shop.no"], ["--local", "--table", "shop.no"]),
    "lake clean": (["--table", "shop.no"], ["--table", "shop.no"]),
    "lake compact": (["--table", "shop.no"], ["--table", "shop.no"]),
    "lake drop": (["t", "--yes"], ["shop.no", "--yes"]),
    "lake expire": (["--table", "shop.no"], ["--table", "shop.no"]),
    "lake status": ([], ["shop.no"]),
    "staged accept": (["t", "query", "3", "--yes"], ["shop.no", "query", "3", "--yes"]),
    "staged list": ([], ["shop.no"]),
    "staged reset": (["t", "query", "--yes"], ["shop.no", "query", "--yes"]),
    "backup": (["copy"], None),
    "bench": (["ack"], None),
    "doctor": ([], None),
}

# Commands on files: something wrong, and what the line says of it.
OF_FILES: Final = {
    "restore": ([["nowhere", "data"], ["rows.csv", "data"]], "not a finished backup"),
    "dump-log": ([["nowhere"], ["rows.csv"]], ""),
    "repair": ([["nowhere"], ["rows.csv"], ["folder"]], ""),
    "server": ([["--data-dir", "rows.csv"], ["--data-dir", "d", "--config", "rows.csv"]], ""),
    "user add": ([["folder", "ann"]], "folder"),
    "user list": ([["nowhere"], ["folder"]], ""),
    "user remove": ([["nowhere", "ann"], ["folder", "ann"]], ""),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text("id\n1\n")
    (tmp_path / "folder").mkdir()
    return tmp_path


def mistake(command: str, arguments: list[str], server: str, cwd: Path) -> str:
    """The one line that a command prints, on standard error, when it fails."""
    done = fluss(*command.split(), *arguments, bootstrap=server, cwd=cwd, input="secret\n")
    assert (done.returncode, done.stdout) == (1, ""), done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"fluss {command.split()[0]}: ")
    return line


def test_every_command_is_here() -> None:
    assert leaves() == {*OF_SERVERS, *OF_FILES}


@pytest.mark.parametrize("command", sorted({*OF_SERVERS} - {"doctor"}))
def test_a_wrong_address(command: str, folder: Path) -> None:
    line = mistake(command, OF_SERVERS[command][0], NOBODY, folder)
    assert NOBODY in line
    assert "`fluss server` starts one" in line


def test_the_doctor_reports_a_wrong_address(folder: Path) -> None:
    done = fluss("doctor", "-b", NOBODY, cwd=folder)
    assert (done.returncode, done.stderr) == (1, "")
    assert NOBODY in done.stdout


@pytest.mark.parametrize("command", sorted(command for command, (_, missing) in OF_SERVERS.items() if missing))
def test_no_such_table(command: str, server: str, folder: Path) -> None:
    missing = OF_SERVERS[command][1]
    assert missing is not None
    assert "no table" in mistake(command, missing, server, folder)


@pytest.mark.parametrize(
    ("command", "arguments"), [(command, given) for command, (bad, _) in OF_FILES.items() for given in bad], ids=str
)
def test_a_bad_file(command: str, arguments: list[str], folder: Path) -> None:
    assert OF_FILES[command][1] in mistake(command, arguments, "", folder)
