"""The command `fluss user`."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fluss.cli.main import main
from fluss.server.net.users import read_users


def run(*arguments: str | Path, password: str = "") -> Result:
    return CliRunner().invoke(main, ["user", *map(str, arguments)], input=password)


def test_add_list_remove(tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert run("add", path, "ada", password="secret\n").output == "user ada added\n"
    assert run("add", path, "bob", password="other").output == "user bob added\n"
    assert run("add", path, "ada", password="changed\n").output == "password of user ada changed\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_users(path)["ada"].matches("changed")
    assert run("list", path).output == "ada\nbob\n"
    assert run("remove", path, "ada").output == "user ada removed\n"
    assert list(read_users(path)) == ["bob"]


@pytest.mark.parametrize(
    ("arguments", "password", "message"),
    [
        (("add", "users", "ada"), "", "A password has 1 to"),
        (("add", "users", "a b"), "x", "A user name has 1 to"),
        (("remove", "users", "ada"), "", "can't be read"),
        (("list", "users"), "", "can't be read"),
        (("add", "no/where", "ada"), "x", "No such file"),
    ],
)
def test_failures_are_one_line(tmp_path: Path, arguments: tuple[str, ...], password: str, message: str) -> None:
    command, file, *rest = arguments
    result = run(command, tmp_path / file, *rest, password=password)
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("ada:plain-text\n")
    result = run("add", path, "bob", password="x")
    assert "line 1 is not a user" in result.output
    assert "plain-text" not in result.output
    assert path.read_text() == "ada:plain-text\n"


def test_a_terminal_is_asked_twice_without_echo(tmp_path: Path) -> None:
    path = tmp_path / "users"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from fluss.cli.main import main; main()", "user", "add", str(path), "ada"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    output = b""
    for prompt in (b"Password: ", b"confirmation: "):
        while prompt not in output:
            output += os.read(ours, 1_000)
        output = output.split(prompt)[-1]
        os.write(ours, b"typed-secret\n")
    while b"user ada added" not in output:
        output += os.read(ours, 1_000)
    assert process.wait(30) == 0
    os.close(ours)
    assert b"typed-secret" not in output
    assert read_users(path)["ada"].matches("typed-secret")
