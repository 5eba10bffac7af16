"""The lists of docs/hacking.md that say what a new data type and a new lake format need are whole."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from tools.tidy import read_modules

from fluss.lake import format as seam
from fluss.model.tables.options import DATALAKE_FORMATS
from tests.kit.pages import DOCS, ROOT

SOURCE = ROOT / "src" / "fluss"
_MODULE = re.compile(r"`([\w/]+\.py)`")
_NAME = re.compile(r"`(\w+)`")

# A decision by the type of a column: Fluss's, the kernels' kinds, Arrow's, Spark's or Iceberg's.
_TYPE = re.compile(
    r"(\bTypeRoot\.[A-Z_]+|\bKIND_[A-Z_]+|^pyarrow\.types\.is_\w+|^pyarrow\.lib\.Type_\w+"
    r"|^(?:pyspark\.sql|pyiceberg)\.types\.(?!Struct)\w+Type)$"
)
_TYPES_THEMSELVES = {"model/types.py"}
_FORMAT_PART = re.compile("|".join(name for name in DATALAKE_FORMATS if name != "LANCE"), re.IGNORECASE)
# A format's own folder names it all the time, and so do launchers of Apache Fluss.
_OF_A_FORMAT = ("lake/iceberg/", "testing/")


def section(title: str) -> str:
    """The text of a section of the page."""
    page = (DOCS / "hacking.md").read_text(encoding="utf-8")
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def listed(title: str) -> set[str]:
    """The modules in the tables of a section."""
    rows = [line for line in section(title).splitlines() if line.startswith("|")]
    return {name for row in rows for name in _MODULE.findall(row)}


def compare(found: set[str], title: str, what: str) -> None:
    assert not (missing := sorted(found - listed(title))), f"{what}, and the table of {title!r} lacks them: {missing}"
    assert not (spare := sorted(listed(title) - found)), f"not so any more, take them out of {title!r}: {spare}"


def test_every_place_that_decides_by_the_type_is_listed() -> None:
    found = {module.path for module in read_modules(ROOT) if any(_TYPE.search(name) for name, _ in module.uses)}
    own = {path.removeprefix("src/fluss/") for path in found} - _TYPES_THEMSELVES
    compare(own, "Add a data type", "these decide by the type of a column")


def test_nothing_else_knows_a_format_by_its_name() -> None:
    found = {
        name
        for path in SOURCE.rglob("*.py")
        if not (name := path.relative_to(SOURCE).as_posix()).startswith(_OF_A_FORMAT) and _names_a_format(path)
    }
    compare(found, "Add a lake format", "these name a format of the lake")


def _names_a_format(path: Path) -> bool:
    """Whether the code has a name or a text that is a format's, or a name with one in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(
        name.strip("_").upper() in DATALAKE_FORMATS or (is_name and _FORMAT_PART.search(name))
        for name, is_name in _words(tree)
    )


def _words(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id, True
        elif isinstance(node, ast.Attribute):
            yield node.attr, True
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2], True
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, False


@pytest.mark.parametrize("protocol", [seam.LakeCatalog, seam.LakeTable, seam.LakeBranch])
def test_every_member_of_the_seam_is_listed(protocol: type) -> None:
    rows = [line for line in section("Add a lake format").splitlines() if line.startswith(f"| `{protocol.__name__}`")]
    told = [name for row in rows for name in _NAME.findall(row.split("|")[2])]
    members = [name for name in vars(protocol) if not name.startswith("_")]
    assert sorted(told) == sorted(members)


def test_every_format_has_a_catalog_of_its_own() -> None:
    for name, place in seam.FORMATS.items():
        module, _, catalog = place.partition(":")
        assert name in DATALAKE_FORMATS
        assert seam.LakeCatalog in getattr(import_module(module), catalog).__mro__
        assert module.startswith(f"fluss.lake.{name.lower()}.")
