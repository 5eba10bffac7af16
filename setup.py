"""Builds the extensions; everything else is in pyproject.toml.

The modules of `fluss.kernels` are compiled as one unit: a source that is made here includes a copy of each of them,
after those that it uses. In a copy what it imports from its neighbours is left blank, so that lines keep their numbers
and a traceback names the module and the line that one can read.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path("src", "fluss", "kernels")
PACKAGE = "fluss.kernels"
UNIT = "fluss.formats._kernel_c"
APART = {"__init__", "_cyshim", "codes"}  # modules that the unit imports, or does without
# In the unit they stand as they are read. What lies beside a loop in compiled code changes its speed by some percent:
# whoever changes the order measures.
ORDER = [
    *("primitives", "row_columns", "row_appender", "row_encoding", "row_decoding", "nested_rows", "kv_records"),
    *("log_records", "hashes", "recent_rows", "protobuf", "arrow_messages", "changes"),
]
SOURCE = """\
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=False
\"\"\"The compiled kernels: the modules of `fluss.kernels` in one scope.\"\"\"

from __future__ import annotations

import cython

COMPILED = True

"""


class Module:
    """A module of the kernels as a part of the unit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.names: dict[str, str] = {}
        """What each name at its top stands for"""
        self.uses: set[str] = set()
        """Other modules of the unit"""
        self._dropped: list[ast.stmt] = []
        for node in ast.parse(self.text, str(path)).body:
            self._enter(node)

    def part(self) -> str:
        """Its text for the unit, each line where it was."""
        lines = self.text.splitlines()
        for node in self._dropped:
            assert node.end_lineno is not None
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
        return "\n".join(lines) + "\n"

    def _enter(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._enter_import(node)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            self.names[node.name] = f"{self.path.stem}.{node.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for name in ast.walk(node):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                    self.names[name.id] = f"{self.path.stem}.{name.id}"
        elif isinstance(node, ast.Expr):
            self._dropped.append(node)  # the docstring
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "cython.compiled"):
            raise SyntaxError(f"{self.path}:{node.lineno}: a kernel has definitions only")

    def _enter_import(self, node: ast.Import | ast.ImportFrom) -> None:
        source = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        owner, _, module = source.rpartition(".")
        if source in ("__future__", f"{PACKAGE}._cyshim"):
            self._dropped.append(node)
        elif owner == PACKAGE and module not in APART and not any(alias.asname for alias in node.names):
            self.uses.add(module)
            self._dropped.append(node)
        else:
            meanings = {alias.asname or alias.name: f"{source}.{alias.name}".strip(".") for alias in node.names}
            if any(self._is_neighbour(meaning) for meaning in meanings.values()):
                raise SyntaxError(f"{self.path}:{node.lineno}: write 'from {PACKAGE}.module import name'")
            self.names |= meanings

    @staticmethod
    def _is_neighbour(meaning: str) -> bool:
        parts = meaning.split(".")
        return parts[:2] == PACKAGE.split(".") and parts[2:3] != ["codes"]


def unit_modules(kernels: Path = KERNELS) -> list[Module]:
    """The modules of the unit, each after those that it uses."""
    names = {path.stem for path in kernels.glob("*.py")} - APART
    order = [name for name in ORDER if name in names] + sorted(names - {*ORDER})
    modules = [Module(kernels / f"{name}.py") for name in order]
    for place, module in enumerate(modules):
        if not module.uses <= {*order[:place]}:
            raise SyntaxError(f"{module.path}: it uses a module that comes behind it in ORDER of setup.py")
    meanings: dict[str, str] = {}
    for module in modules:
        for name, meaning in module.names.items():
            if meanings.setdefault(name, meaning) != meaning:
                raise SyntaxError(f"{module.path}: the name {name} is {meanings[name]} elsewhere in the unit")
    return modules


def write_unit(target: Path) -> str:
    """Write the source of the unit into a folder, and the parts that it includes below that."""
    (target / KERNELS).mkdir(parents=True, exist_ok=True)
    includes = ""
    for module in unit_modules():
        (target / module.path).write_text(module.part(), encoding="utf-8")
        includes += f'include "{module.path.as_posix()}"\n'
    source = UNIT.rpartition(".")[2] + ".pyx"
    (target / source).write_text(SOURCE + includes, encoding="utf-8")
    return source


@contextmanager
def working_in(path: Path) -> Iterator[None]:
    """Change the working directory for a while."""
    before = Path.cwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


class BuildExtensions(build_ext):
    """Makes the unit of the kernels before it is compiled."""

    def build_extension(self, ext: Extension) -> None:
        if ext.name == UNIT:
            ext.depends, ext.sources = ext.sources, [self._unit_as_c()]
        super().build_extension(ext)

    def _unit_as_c(self) -> str:
        from Cython.Build import cythonize

        target = Path(self.build_temp, "kernels")
        source = write_unit(target)
        with working_in(target):  # where the parts have the names that tracebacks show
            made = cythonize([Extension(UNIT, [source])], include_path=["."], force=True, quiet=True)
        return str(target / made[0].sources[0])


if __name__ == "__main__":
    setup(
        cmdclass={"build_ext": BuildExtensions},
        ext_modules=[
            Extension(UNIT, [path.as_posix() for path in sorted(KERNELS.glob("*.py"))], optional=True),
            Extension("fluss.storage._unlocked_syncs", ["src/fluss/storage/_unlocked_syncs.c"], optional=True),
        ],
    )
