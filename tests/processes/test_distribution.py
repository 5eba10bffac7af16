"""The wheel and the source distribution build, and the wheel works in an environment that has nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ["pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in", "src"]

PROGRAM = """
import sys, fluss, pathlib
assert "site-packages" in fluss.__file__, fluss.__file__
import pyarrow as pa
import fluss.sync as f
with f.FlussConnection.create(f.Config({"bootstrap.servers": sys.argv[1]})) as conn:
    path = f.TablePath("fluss", "bare")
    conn.get_admin().create_table(path, f.TableDescriptor(f.Schema(pa.schema([("id", pa.int32())]))))
    table = conn.get_table(path)
    writer = table.new_append().create_writer()
    writer.append([7])
    writer.flush()
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, f.EARLIEST_OFFSET)
    print(scanner.to_arrow().to_pylist())
from fluss.formats import kernel
from fluss.storage.kv import unlocked_syncs
print("compiled" if kernel.COMPILED else "plain", unlocked_syncs.IN_USE)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy without build products, so that nothing left in the work tree helps the build."""
    copy = tmp_path_factory.mktemp("source")
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=ignore)
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, copy)
    return copy


def has_compiler() -> bool:
    """Whether a build here can compile; `CC=false` hides the compiler."""
    command = os.environ.get("CC", "cc")
    return bool(shutil.which(command)) and not subprocess.run([command, "--version"], capture_output=True).returncode


# What a build gets in its environment. The short form leaves out what takes the C compiler most of its time.
QUICK = {"CFLAGS": "-O0"}
BUILDS = {"compiler": QUICK, "no-compiler": {"CC": "false"}, "as-released": {}}
NAMES = ["compiler", "no-compiler", pytest.param("as-released", marks=pytest.mark.full)]


@pytest.fixture(scope="module")
def build(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    """The distributions of a kind of build, each made once."""

    @cache
    def built(name: str) -> dict[str, Path]:
        output = tmp_path_factory.mktemp("dist")
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(output), str(source)]
        environment = {**os.environ, **BUILDS[name]}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        return {"wheel": next(output.glob("*.whl")), "sdist": next(output.glob("*.tar.gz"))}

    return built


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that gets a wheel and what it depends on; the dependencies are left for the next wheel."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=True)
    return folder


def install(bare: Path, wheel: Path) -> None:
    """Replace the wheel that was there before."""
    pip = [str(bare / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "uninstall", "-q", "-y", "flussbett"], check=True, timeout=60, cwd=bare, capture_output=True)
    # pip's own compiling of every module to bytecode takes longer than the test.
    subprocess.run([*pip, "install", "-q", "--no-compile", str(wheel)], check=True, timeout=300, cwd=bare)
    subprocess.run([*pip, "check"], check=True, timeout=60, cwd=bare)


@pytest.mark.timeout(600)
def test_distributions_have_what_they_need(build: Callable[[str], dict[str, Path]]) -> None:
    built = build("compiler")
    wheel = zipfile.ZipFile(built["wheel"]).namelist()
    for name in ("fluss/py.typed", "fluss/protocol/messages.proto", "pyspark_fluss.py", "fluss/kernels/primitives.py"):
        assert name in wheel
    assert not [name for name in wheel if name.startswith(("tests/", "benchmarks/"))]
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.split("/", 1)[-1] for name in sdist.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/fluss/py.typed"} <= names


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_wheel_works_in_a_bare_environment(
    build: Callable[[str], dict[str, Path]], bare: Path, tmp_path: Path, name: str
) -> None:
    install(bare, build(name)["wheel"])
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "FLUSS_PURE")}
    server = subprocess.Popen(
        [bare / "bin" / "fluss", "server", "--data-dir", tmp_path / "data", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        command = [bare / "bin" / "python", "-c", PROGRAM, address]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment)
    finally:
        server.terminate()
        server.wait(30)
    assert result.returncode == 0, result.stderr
    is_compiled = name != "no-compiler" and has_compiler()
    expected = f"compiled {sys.platform == 'linux'}" if is_compiled else "plain False"
    assert result.stdout.splitlines() == ["[{'id': 7}]", expected]
