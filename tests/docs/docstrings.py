"""Examples in docstrings of the facades: the shop that they speak of, and how they are run."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple

import pandas as pd
import pyarrow as pa

import fluss
import fluss.aio
import fluss.sync

DATABASE: Final = "shop"
TYPES: Final = fluss.DataTypes
_FLAGS: Final = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# The class by which a facade is known, and where its own docstrings are.
_HOMES: Final = {fluss.aio: "fluss.api._aio.", fluss.sync: "fluss.api._sync.", fluss: "fluss.api.mixed"}


class Described(NamedTuple):
    """Something public of a facade, and its docstring."""

    facade: ModuleType
    owner: str
    """The class, or the function itself"""
    name: str
    """The member, empty for the class"""
    item: Any

    @property
    def text(self) -> str:
        return inspect.getdoc(self.item) or ""

    def __str__(self) -> str:
        return ".".join(filter(None, [self.facade.__name__, self.owner, self.name]))


def described() -> list[Described]:
    """The classes that talk to a server, their members, and `connect`; what two facades share once."""
    found: dict[int, Described] = {}
    for facade, home in _HOMES.items():
        for owner in sorted(facade.__all__):
            kind = getattr(facade, owner)
            if owner == "connect":
                found[id(kind)] = Described(facade, owner, "", kind)
            elif inspect.isclass(kind) and kind.__module__.startswith(home):
                found[id(kind)] = Described(facade, owner, "", kind)
                for name, item in _members(kind):
                    found.setdefault(id(item), Described(facade, owner, name, item))
    return list(found.values())


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public members, as the functions and properties that they are."""
    for name in dir(kind):
        item = inspect.getattr_static(kind, name)
        if not name.startswith("_") and (callable(item) or isinstance(item, classmethod | property)):
            yield name, item.__func__ if isinstance(item, classmethod) else item


class Shop:
    """A database that examples use. Whatever they name is made for them when they name it."""

    def __init__(self, facade: ModuleType, setup: fluss.sync.FlussConnection) -> None:
        self._facade = facade
        self._setup = setup
        self._made: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self.names: dict[str, Any] = {"fluss": facade, "pa": pa, "pd": pd}

    def run(self, owner: str, text: str) -> None:
        """Run the examples of a docstring; raises for the first that does not print what it says."""
        try:
            self._open()
            for name in TABLES:
                if re.search(rf"\b{name}\b", text):
                    self._make(name)
            for name, make in {**SHARED, **OWN.get(owner, {})}.items():
                if re.search(rf"^ *(>>>|\.\.\.) .*\b{name}\b", text, re.MULTILINE):
                    self.names[name] = self.waited(make(self))
            for example in doctest.DocTestParser().get_examples(text):
                self._check(example)
        finally:
            self.waited(self.names["conn"].close())
            self._loop.close()

    def waited(self, result: Any) -> Any:
        """A result, awaited if it is a coroutine."""
        return self._loop.run_until_complete(result) if inspect.iscoroutine(result) else result

    def table(self, name: str) -> Any:
        """A table as the facade has it."""
        self._make(name)
        return self.waited(self.names["conn"].get_table(fluss.TablePath(DATABASE, name)))

    def _open(self) -> None:
        admin = self._setup.get_admin()
        for name in set(admin.list_databases()) - {"fluss"}:
            admin.drop_database(name)
        admin.create_database(DATABASE)
        self.names["conn"] = self.waited(self._facade.FlussConnection.create(self._setup.reachable_config()))

    def _make(self, name: str) -> None:
        if name in self._made:
            return
        self._made.add(name)
        path, (descriptor, rows) = fluss.TablePath(DATABASE, name), TABLES[name]
        self._setup.get_admin().create_table(path, descriptor)
        if descriptor.partition_keys:
            self._setup.get_admin().create_partition(path, {"day": "2026-01-31"})
        table = self._setup.get_table(path)
        writer = table.new_upsert() if table.has_primary_key() else table.new_append().create_writer()
        writer.write_arrow(pa.Table.from_pylist(rows))
        writer.flush()

    def _check(self, example: doctest.Example) -> None:
        printed = io.StringIO()
        code = compile(example.source, f"<line {example.lineno}>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        shown, sys.displayhook = sys.displayhook, lambda value: None if value is None else print(repr(value))
        try:
            with contextlib.redirect_stdout(printed):
                self.waited(eval(code, self.names))
        finally:
            sys.displayhook = shown
        checker = doctest.OutputChecker()
        if not checker.check_output(example.want, printed.getvalue(), _FLAGS):
            raise AssertionError(
                f">>> {example.source}{checker.output_difference(example, printed.getvalue(), _FLAGS)}"
            )


def _descriptor(columns: dict[str, fluss.DataType], key: list[str] | None = None, **more: Any) -> fluss.TableDescriptor:
    builder = fluss.Schema.builder()
    for name, kind in columns.items():
        builder = builder.column(name, kind)
    return fluss.TableDescriptor((builder.primary_key(key) if key else builder).build(), bucket_count=1, **more)


TABLES: Final = {
    "clicks": (
        _descriptor({"id": TYPES.bigint(), "url": TYPES.string()}),
        [{"id": 1, "url": "/"}, {"id": 2, "url": "/buy"}, {"id": 3, "url": "/bye"}],
    ),
    "users": (
        _descriptor({"id": TYPES.int(), "name": TYPES.string()}, ["id"]),
        [{"id": 1, "name": "ada"}, {"id": 2, "name": "bob"}],
    ),
    "orders": (
        _descriptor(
            {"customer": TYPES.int(), "number": TYPES.int(), "item": TYPES.string()},
            ["customer", "number"],
            bucket_keys=["customer"],
        ),
        [{"customer": 1, "number": 1, "item": "tea"}, {"customer": 1, "number": 2, "item": "milk"}],
    ),
    "visits": (
        _descriptor({"day": TYPES.string(), "id": TYPES.bigint()}, partition_keys=["day"]),
        [{"day": "2026-01-31", "id": 1}],
    ),
}


Make = Callable[[Shop], Any]


def _limited(shop: Shop) -> Any:
    clicks = shop.table("clicks")
    bucket = fluss.TableBucket(clicks.get_table_info().table_id, 0)
    return clicks.new_scan().limit(2).create_bucket_batch_scanner(bucket)


# Names in the examples of all classes, and in those of some, where the class says how to obtain one.
SHARED: Final[dict[str, Make]] = {
    "admin": lambda shop: shop.names["conn"].get_admin(),
    **{name: lambda shop, name=name: shop.table(name) for name in TABLES},  # type: ignore[misc]
}
OWN: Final[dict[str, dict[str, Make]]] = {
    "AppendWriter": {"writer": lambda shop: shop.table("clicks").new_append().create_writer()},
    "BatchScanner": {"scanner": _limited},
    "Changes": {"changes": lambda shop: shop.table("users").changes()},
    "LogScanner": {
        "scanner": lambda shop: shop.table("clicks").new_scan().create_record_batch_log_scanner(),
        "records": lambda shop: shop.table("clicks").new_scan().create_log_scanner(),
    },
    "Lookuper": {"lookuper": lambda shop: shop.table("users").new_lookup().create_lookuper()},
    "PrefixLookuper": {
        "lookuper": lambda shop: shop.table("orders").new_lookup().lookup_by(["customer"]).create_lookuper()
    },
    "StagedWrite": {"staged": lambda shop: shop.table("clicks").new_staged_write("nightly", 1)},
    "StagedWriter": {
        "staged": lambda shop: shop.table("clicks").new_staged_write("nightly", 1),
        "writer": lambda shop: shop.table("users").new_staged_write("nightly", 1).create_writer(0, 0),
    },
    "TableLookup": {"lookup": lambda shop: shop.table("users").new_lookup()},
    "TableUpsert": {"upsert": lambda shop: shop.table("users").new_upsert()},
    "UnionScan": {"union": lambda shop: shop.table("clicks").new_scan().union(mode="none")},
    "UpsertWriter": {"writer": lambda shop: shop.table("users").new_upsert().create_writer()},
    "WriteResultHandle": {"handle": lambda shop: shop.table("clicks").new_append().create_writer().append([4, "/"])},
}
