"""The data directory: who may use it, and what a refusal says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fluss.storage.directory import FORMAT_VERSION, DataDirectory, DataDirectoryError


def test_a_fresh_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    DataDirectory.open(root).close()
    assert (root / "format_version").read_text() == f"{FORMAT_VERSION}\n"
    DataDirectory.open(root).close()


def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    newer = FORMAT_VERSION + 1
    (tmp_path / "format_version").write_text(f"{newer}\n")
    with pytest.raises(DataDirectoryError, match=rf"version {newer}; .*up to {FORMAT_VERSION}\. Upgrade flussbett"):
        DataDirectory.open(tmp_path)
    assert os.listdir(tmp_path) == ["format_version"]


def test_an_unreadable_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "format_version").write_bytes(b"\xffgarbage")
    with pytest.raises(DataDirectoryError, match="should hold a version number"):
        DataDirectory.open(tmp_path)


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("precious")
    with pytest.raises(DataDirectoryError, match=r"thesis\.doc"):
        DataDirectory.open(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.doc"]


def test_a_file_is_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataDirectoryError, match=r"can't be used|is a file"):
            DataDirectory.open(path)


def test_what_an_interrupted_first_start_leaves_is_no_obstacle(tmp_path: Path) -> None:
    for name in ("server.lock", "server.pid", "server.log", "format_version.tmp"):
        (tmp_path / name).write_text("")
    (tmp_path / "lost+found").mkdir()
    DataDirectory.open(tmp_path).close()
    assert (tmp_path / "format_version").exists()


def test_a_second_server_is_refused_with_directory_and_pid(tmp_path: Path) -> None:
    first = DataDirectory.open(tmp_path)
    with pytest.raises(DataDirectoryError, match=f"{tmp_path} is in use .*process {os.getpid()}"):
        DataDirectory.open(tmp_path)
    script = (
        f"import pathlib; from fluss.storage.directory import *; DataDirectory.open(pathlib.Path({str(tmp_path)!r}))"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert f"in use by another server (process {os.getpid()})" in other.stderr
    (tmp_path / "server.pid").write_text("")
    with pytest.raises(DataDirectoryError, match=r"another server\. Stop it"):
        DataDirectory.open(tmp_path)
    first.close()
    DataDirectory.open(tmp_path).close()


def test_a_killed_server_leaves_no_lock(tmp_path: Path) -> None:
    script = (
        "import signal; from fluss.storage.directory import *;"
        f"held = DataDirectory.open(Path({str(tmp_path)!r})); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    DataDirectory.open(tmp_path).close()
