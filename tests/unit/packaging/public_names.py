"""What others name: import paths, members of classes, commands, entry points. Kept in public_names.toml.

`python -m tests.unit.packaging.public_names` adds what is new to the list. It takes nothing out: whoever takes a name
away from users does so by hand, and says it in CHANGELOG.md.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[3]
LIST = Path(__file__).with_name("public_names.toml")

MODULES = [
    "fluss",
    "fluss.aio",
    "fluss.lake",
    "fluss.lake.report",
    "fluss.spark",
    "fluss.sync",
    "fluss.testing",
    "pyspark_fluss",
    "pytest_fluss",
]
# The classes of `fluss.aio` and `fluss.sync` have the same members as those of `fluss`; test_surface.py compares them.
WITH_MEMBERS = ["fluss", "fluss.spark", "fluss.testing"]

HEADER = """\
# What users' programs, Spark, pytest and shells name. A name may move to another file, but not away from here: the test
# beside this list fails. `python -m tests.unit.packaging.public_names` adds new ones.
"""


def public_names(module: ModuleType) -> list[str]:
    """What a module offers: `__all__`, or without one what it defines."""
    names = getattr(module, "__all__", None)
    if names is not None:
        return sorted(names)
    tree = ast.parse(inspect.getsource(module))
    defined = (item.name for item in tree.body if isinstance(item, ast.FunctionDef | ast.ClassDef))
    return sorted(name for name in defined if not name.startswith("_"))


def public_members(kind: type) -> list[str]:
    """The members of a class that it, or a base of ours, defines."""
    ours = [base for base in kind.__mro__ if base.__module__.split(".")[0] == "fluss"]
    return sorted({name for base in ours for name in vars(base) if not name.startswith("_")})


def found_names() -> dict[str, list[str]]:
    """Module by module what there is."""
    return {name: public_names(importlib.import_module(name)) for name in MODULES}


def found_members() -> dict[str, list[str]]:
    """Class by class what there is."""
    found = {}
    for module_name in WITH_MEMBERS:
        module = importlib.import_module(module_name)
        for name in public_names(module):
            item = getattr(module, name)
            if isinstance(item, type) and (members := public_members(item)):
                found[f"{module_name}.{name}"] = members
    return found


def found_entries() -> dict[str, list[str]]:
    """Commands and plug-ins that pyproject.toml gives to other programs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    return {group: sorted(entries) for group, entries in groups.items()}


def listed() -> dict[str, Any]:
    """The list as it is."""
    return tomllib.loads(LIST.read_text(encoding="utf-8")) if LIST.exists() else {}


def _table(title: str, entries: Mapping[str, Iterable[str]]) -> list[str]:
    lines = ["", f"[{title}]"]
    for key, names in sorted(entries.items()):
        lines += [f"{json.dumps(key)} = [", *(f"    {json.dumps(name)}," for name in sorted(set(names))), "]"]
    return lines


def write() -> None:
    """Add to the list what it lacks."""
    tables = listed()
    found = {"names": found_names(), "members": found_members(), "entries": found_entries()}
    lines = [HEADER.rstrip()]
    for title in ("names", "members", "commands", "entries"):
        known = tables.get(title, {})
        new = found.get(title, {})
        lines += _table(title, {key: [*known.get(key, ()), *new.get(key, ())] for key in {*known, *new}})
    LIST.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
