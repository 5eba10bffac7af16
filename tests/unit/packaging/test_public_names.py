"""No name that others use goes away, and none comes without being listed. See public_names.py and pickles.py."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import tomllib
from functools import reduce
from typing import Any

import pytest

import fluss
from tests.unit.packaging import pickles, public_names

LISTED = public_names.listed()
ADD = "run python -m tests.unit.packaging.public_names, and look at what it added"
REASON = "users' programs name it: keep it there, if only as an import from where it is now"


@pytest.mark.parametrize("module_name", LISTED["names"])
def test_names_can_be_imported(module_name: str) -> None:
    module = importlib.import_module(module_name)
    missing = [name for name in LISTED["names"][module_name] if not hasattr(module, name)]
    assert not missing, f"{module_name} has lost {', '.join(missing)}; {REASON}"


@pytest.mark.parametrize("place", LISTED["members"])
def test_classes_keep_their_members(place: str) -> None:
    module_name, _, name = place.rpartition(".")
    kind = getattr(importlib.import_module(module_name), name)
    missing = [member for member in LISTED["members"][place] if not hasattr(kind, member)]
    assert not missing, f"{place} has lost {', '.join(missing)}; {REASON}"


@pytest.mark.parametrize(
    ("table", "found"), [("names", public_names.found_names()), ("members", public_names.found_members())]
)
def test_new_names_are_listed(table: str, found: dict[str, list[str]]) -> None:
    new = {key: sorted(set(names) - set(LISTED[table].get(key, ()))) for key, names in found.items()}
    new = {key: names for key, names in new.items() if names}
    assert not new, f"not in {public_names.LIST.name}: {new}; {ADD}"


@pytest.mark.parametrize("name", LISTED["commands"]["python -m"])
def test_modules_that_python_runs(name: str) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"python -m {name} finds nothing; {REASON}"
    is_package = spec.submodule_search_locations is not None
    main = importlib.util.find_spec(f"{name}.__main__") if is_package else spec
    assert main is not None, f"python -m {name} has no __main__; {REASON}"
    assert main.origin is not None
    with open(main.origin, encoding="utf-8") as source:
        assert "__main__" in source.read() or is_package, f"python -m {name} would do nothing"


def test_entry_points_lead_somewhere() -> None:
    project = tomllib.loads((public_names.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    for group, names in LISTED["entries"].items():
        for name in names:
            assert name in groups.get(group, {}), f"pyproject.toml has lost {name} of {group}; {REASON}"
    for entries in groups.values():
        for target in entries.values():
            module_name, _, attribute = target.partition(":")
            reduce(getattr, filter(None, attribute.split(".")), importlib.import_module(module_name))
    assert public_names.found_entries() == LISTED["entries"], ADD


def _same(loaded: Any, sample: Any) -> bool:
    if isinstance(sample, fluss.FlussError):
        return (loaded.message, loaded.error_code) == (sample.message, sample.error_code)
    return repr(loaded) == repr(sample)


SAMPLES = pickles.samples() | {name: getattr(fluss, name)("gone", 7) for name in pickles.ERRORS}


@pytest.mark.parametrize("name", sorted(pickles.stored()))
def test_values_that_were_pickled_load(name: str) -> None:
    """A class that moved is found by old pickles if its old module still has the name."""
    loaded, sample = pickles.load(pickles.stored()[name]), SAMPLES[name]
    assert type(loaded) is type(sample)
    assert _same(loaded, sample)


def test_every_kind_of_value_has_a_pickle() -> None:
    missing = sorted(set(SAMPLES) - set(pickles.stored()))
    assert not missing, f"not in {pickles.STORED.name}: {missing}; run python -m tests.unit.packaging.pickles"
    # What has none is no value: classes of names alone, builders, results, and other names of the same class.
    rest = {"DataTypes", "DatabaseDescriptorBuilder", "ErrorCode", "SchemaBuilder", "TableDescriptorBuilder"}
    rest |= {"ColumnRef", "InternalRow", "RecordBatch", "ScanBatch", "ScanRecord", "ScanRecords"}
    values = {name for name in fluss.__all__ if isinstance(item := getattr(fluss, name), type) and not _acts(item)}
    assert values - rest == set(SAMPLES)


def _acts(kind: type) -> bool:
    """Whether a class talks to a server: those are in the facades, and can't be pickled."""
    return kind.__module__.startswith("fluss.api.")


@pytest.mark.parametrize("place", [place for places in pickles.TRAVELS.values() for place in places])
def test_what_travels_can_be_named_by_a_pickle(place: str) -> None:
    """Where one moves, its new place goes into the list: both ends of a way run the same version."""
    try:
        kind = pickles.resolve(place)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("pyspark"):
            raise
        pytest.skip(f"this version of Spark has no {error.name}")
    assert inspect.isclass(kind)
    assert f"{kind.__module__}:{kind.__qualname__}" == place
