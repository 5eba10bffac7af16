"""What was read must be what was written: all rows and all values of it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


class WrongResultError(Exception):
    """Rows that are missing, too many or different."""


def check_rows(found: pa.Table, expected: pa.Table) -> None:
    """Compare with the expected rows, which are in the order of their ids and have the columns that matter."""
    if found.num_rows != expected.num_rows:
        raise WrongResultError(f"{found.num_rows:,} rows came, {expected.num_rows:,} were expected.")
    ordered = found.sort_by("id")
    for name in expected.column_names:
        came, wanted = ordered[name], expected[name]
        if not came.equals(wanted):
            raise WrongResultError(_difference(name, came, wanted, expected["id"]))


def check_equal(found: object, expected: object) -> None:
    """Compare what a lookup has found."""
    if found != expected:
        raise WrongResultError(f"{found!r:.200} came, {expected!r:.200} was expected.")


def _difference(name: str, came: pa.ChunkedArray, wanted: pa.ChunkedArray, ids: pa.ChunkedArray) -> str:
    if came.type != wanted.type:
        return f"Column {name} has the type {came.type}, not {wanted.type}."
    differs = pc.fill_null(pc.not_equal(came, wanted), True)
    count, first = pc.sum(differs).as_py(), pc.index(differs, True).as_py()
    place = f"the row with id {ids[first]} has {came[first].as_py()!r}, not {wanted[first].as_py()!r}"
    return f"Column {name} is wrong in {count:,} rows: {place}."
