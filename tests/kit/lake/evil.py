"""What an attacker would have others run: classes that leave a mark when they are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.locations import SimpleLocationProvider

MARK = "evil.mark"


class EvilIO(PyArrowFileIO):
    def __init__(self, properties: Any) -> None:
        Path(properties[MARK]).touch()
        super().__init__(properties)


class EvilLocations(SimpleLocationProvider):
    def __init__(self, table_location: str, table_properties: Any) -> None:
        Path(table_properties[MARK]).touch()
        super().__init__(table_location, table_properties)


def code_keys(mark: Path) -> dict[str, str]:
    """Properties that have pyiceberg run these classes."""
    return {
        MARK: str(mark),
        "py-io-impl": "tests.kit.lake.evil.EvilIO",
        "py-catalog-impl": "tests.kit.lake.evil.EvilIO",
        "io-impl": "tests.kit.lake.evil.EvilIO",
        "write.py-location-provider.impl": "tests.kit.lake.evil.EvilLocations",
    }
