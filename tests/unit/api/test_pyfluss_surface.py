"""`fluss.aio` has everything in pyfluss 1.0.0's type stubs, with the same parameters, awaited where pyfluss awaits."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import fluss.aio
from tests.peers.environments import pyfluss_stub


class Member(NamedTuple):
    """A function of the stubs."""

    owner: str | None
    node: ast.FunctionDef | ast.AsyncFunctionDef

    @property
    def name(self) -> str:
        return self.node.name if self.owner is None else f"{self.owner}.{self.node.name}"

    @property
    def decorators(self) -> set[str]:
        return {ast.unparse(decorator) for decorator in self.node.decorator_list}

    @property
    def is_property(self) -> bool:
        return "property" in self.decorators or any(name.endswith(".setter") for name in self.decorators)


def stub() -> ast.Module:
    return ast.parse(pyfluss_stub().read_text())


def members() -> Iterator[Member]:
    for node in stub().body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Member(None, node)
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield Member(node.name, item)


def attributes() -> Iterator[tuple[str, str]]:
    """Annotated and assigned names of classes, and the module's constants."""
    for node in stub().body:
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield node.name, item.target.id
                elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                    yield node.name, item.targets[0].id


PRESENT = [member for member in members() if "overload" not in member.decorators]


@pytest.mark.parametrize("member", PRESENT, ids=lambda member: member.name)
def test_member(member: Member) -> None:
    owner = fluss.aio if member.owner is None else getattr(fluss.aio, member.owner)
    name = "__init__" if member.node.name == "__new__" else member.node.name
    if member.is_property:
        assert name in dir(owner) or name in getattr(owner, "__annotations__", {})
        return
    ours = getattr(owner, name)
    if name.startswith("__") and name != "__init__":
        return
    if member.owner == "ChangeType" or ours is object.__init__:
        return
    _check_parameters(member, ours)
    if isinstance(member.node, ast.AsyncFunctionDef):
        assert inspect.iscoroutinefunction(ours)
    else:
        assert not inspect.iscoroutinefunction(ours)


def _check_parameters(member: Member, ours: object) -> None:
    theirs = member.node.args
    names = [argument.arg for argument in theirs.args if argument.arg not in ("self", "cls")]
    assert callable(ours)
    signature = inspect.signature(ours)
    parameters = [name for name in signature.parameters if name not in ("self", "cls")]
    if any(argument.arg in ("exc_type",) for argument in theirs.args):
        return
    assert parameters[: len(names)] == names, "positional parameters differ"
    for argument in theirs.kwonlyargs:
        assert argument.arg in parameters
    required = len(names) - len(theirs.defaults)
    for name in names[required:]:
        assert signature.parameters[name].default is not inspect.Parameter.empty, f"{name} must be optional"
    for name in parameters[len(names) :]:
        parameter = signature.parameters[name]
        optional = parameter.default is not inspect.Parameter.empty or parameter.kind is parameter.VAR_KEYWORD
        assert optional, f"{name} is one more than pyfluss has, so it must be optional"


def test_classes_and_functions() -> None:
    names = {node.name for node in stub().body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert {"Config", "FlussAdmin", "Predicate", "col", "BatchScanner"} < names
    assert not [name for name in sorted(names) if not hasattr(fluss.aio, name)]


@pytest.mark.parametrize(("owner", "name"), list(attributes()))
def test_attribute(owner: str, name: str) -> None:
    if owner == "FlussError":
        assert hasattr(fluss.aio.FlussError("text"), name)
    else:
        assert hasattr(getattr(fluss.aio, owner), name)


def test_constants() -> None:
    constants = [
        node.target.id for node in stub().body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    assert "EARLIEST_OFFSET" in constants
    assert not [name for name in constants if not hasattr(fluss.aio, name)]
