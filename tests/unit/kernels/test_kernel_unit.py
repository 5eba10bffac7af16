"""The kernels' modules become one compile unit in which everything is where it was."""

from __future__ import annotations

import ast
import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
KERNELS = ROOT / "src" / "fluss" / "kernels"
HEAD = "from fluss.kernels._cyshim import cython\n"


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_of_the_project", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def definitions(text: str) -> dict[str, int]:
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name: node.lineno for node in ast.parse(text).body if isinstance(node, kinds)}


def test_unit_has_every_module_behind_those_that_it_uses(setup: ModuleType) -> None:
    modules = setup.unit_modules(KERNELS)
    names = [module.path.stem for module in modules]
    assert names == setup.ORDER
    assert {*names, *setup.APART} == {path.stem for path in KERNELS.glob("*.py")}
    for place, module in enumerate(modules):
        assert module.uses <= set(names[:place])


def test_parts_keep_their_lines_and_import_no_neighbour(setup: ModuleType) -> None:
    for module in setup.unit_modules(KERNELS):
        part = module.part()
        assert definitions(part) == definitions(module.path.read_text(encoding="utf-8"))
        imports = [ast.unparse(node) for node in ast.parse(part).body if isinstance(node, ast.ImportFrom)]
        assert {line for line in imports if "fluss.kernels" in line} <= {"from fluss.kernels import codes"}


def test_source_includes_all_parts(setup: ModuleType, tmp_path: Path) -> None:
    with setup.working_in(ROOT):
        source = setup.write_unit(tmp_path)
    lines = (tmp_path / source).read_text(encoding="utf-8").splitlines()
    included = [line.split('"')[1] for line in lines if line.startswith("include ")]
    assert [Path(name).stem for name in included] == [module.path.stem for module in setup.unit_modules(KERNELS)]
    assert all((tmp_path / name).is_file() for name in included)
    assert not any(os.path.isabs(name) for name in included)  # they are in tracebacks


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ("_SIZE = 1\n", "_SIZE = 2\n", "other.py: the name _SIZE is one._SIZE elsewhere"),
        ("from math import floor as low\n", "def low() -> None: ...\n", "the name low is math.floor elsewhere"),
        ("SIZE = 1\n", "from fluss.kernels.one import SIZE as size\n", "other.py:2: write 'from fluss.kernels.module"),
        ("from fluss.kernels.other import SIZE\n", "SIZE = 1\n", "one.py: it uses a module that comes behind it"),
        ("SIZE = 1\n", "from fluss.kernels import one\n", "other.py:2: write"),
        ("SIZE = 1\n", "import fluss.kernels.one as one\n", "other.py:2: write"),
        ("SIZE = 1\n", "for i in range(3): print(i)\n", "other.py:2: a kernel has definitions only"),
    ],
)
def test_what_would_mean_something_else_in_the_unit_is_refused(
    setup: ModuleType, tmp_path: Path, one: str, other: str, message: str
) -> None:
    (tmp_path / "one.py").write_text(HEAD + one)
    (tmp_path / "other.py").write_text(HEAD + other)
    with pytest.raises(SyntaxError, match=message):
        setup.unit_modules(tmp_path)
