from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fluss.testing.apache import cache_dir, fetch_jars

SMALL_ARTIFACT = "org.slf4j:slf4j-api:1.7.36"
FETCH = f"from fluss.testing.apache import fetch_jars; print(fetch_jars('small', ['{SMALL_ARTIFACT}']))"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLUSS_TEST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_cache_directory_comes_from_the_environment(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == cache
    assert cache.is_dir()
    monkeypatch.delenv("FLUSS_TEST_CACHE")
    monkeypatch.setenv("HOME", str(cache))
    assert cache_dir() == cache / ".cache" / "flussbett" / "apache-fluss-0.9.1"


@pytest.mark.compat
def test_concurrent_fetches_share_one_download(cache: Path) -> None:
    fetches = [subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    found = {fetch.communicate(timeout=300)[0].strip() for fetch in fetches}
    assert len(found) == 1
    folder = Path(found.pop())
    assert [jar.name for jar in folder.iterdir()] == ["slf4j-api-1.7.36.jar"]
    assert {entry.name for entry in cache.iterdir()} == {folder.name, "maven.lock"}


@pytest.mark.compat
@pytest.mark.parametrize(("alone", "jars"), [(True, {"slf4j-nop"}), (False, {"slf4j-nop", "slf4j-api"})])
def test_jars_come_with_or_without_what_they_need(cache: Path, alone: bool, jars: set[str]) -> None:
    folder = fetch_jars("nop", ["org.slf4j:slf4j-nop:1.7.36"], alone=alone)
    assert {jar.name.removesuffix("-1.7.36.jar") for jar in folder.iterdir()} == jars


@pytest.mark.compat
def test_a_failed_fetch_leaves_nothing_that_looks_complete(cache: Path) -> None:
    with pytest.raises(RuntimeError, match="Maven could not fetch"):
        fetch_jars("missing", ["org.slf4j:no-such-artifact:1"])
    assert [entry.name for entry in cache.iterdir() if entry.is_dir()] == []


def test_a_machine_without_maven_is_told_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(RuntimeError, match="Maven"):
        fetch_jars("any", [SMALL_ARTIFACT])
