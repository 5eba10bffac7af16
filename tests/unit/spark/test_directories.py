"""Data directories as addresses in tasks, which may run on other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.model.errors import InvalidRequestError
from fluss.spark.source_options import check_directory


def test_a_directory_that_is_not_on_this_machine_is_not_made(tmp_path: Path) -> None:
    """A server would be started on an empty one, and the table not be found there."""
    missing = tmp_path / "data"
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match=r"host:port, as bootstrap\.servers"):
            check_directory(missing.as_uri())
        assert not missing.exists() or not list(missing.iterdir())
        missing.mkdir(exist_ok=True)
    (missing / "format_version").write_text("3\n")
    check_directory(f" {missing.as_uri()} ")
    check_directory("host:9123")
