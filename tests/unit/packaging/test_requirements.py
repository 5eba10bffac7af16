"""Lock files name files by their hashes and no place to get them from; dependencies end before the next major."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOCKS = sorted(ROOT.glob("requirements*.lock"))
_PIN = re.compile(r"(?P<name>[a-z0-9-]+)==\S+( ; [^\\]+)?")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def test_there_are_lock_files() -> None:
    assert [path.name for path in LOCKS] == [
        "requirements-kafka.lock",
        "requirements-pyfluss.lock",
        "requirements-s3.lock",
        "requirements-spark40.lock",
        "requirements-spark42.lock",
        "requirements-spark43.lock",
        "requirements.lock",
    ]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_file_has_pins_and_hashes_alone(path: Path) -> None:
    for block in re.split(r"\n(?=\S)", path.read_text().strip()):
        pin, *hashes = block.replace(" \\\n", "\n").split("\n")
        assert _PIN.fullmatch(pin), pin
        assert hashes, f"{pin} has no hash"
        assert all(_HASH.fullmatch(one.strip()) for one in hashes), pin


def test_installs_ask_for_hashes() -> None:
    for path in (ROOT / "Makefile", ROOT / "tests/peers/environments.py"):
        installs = [line for line in path.read_text().splitlines() if '"-r"' in line or "-r requirements" in line]
        assert installs, path
        assert all("--require-hashes" in line for line in installs), installs


def test_dependencies_of_the_package_have_an_upper_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for more in project["optional-dependencies"].values() for one in more)]
    assert [one for one in wanted if "<" not in one.partition(";")[0]] == []
