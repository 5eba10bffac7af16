"""Where files of a lake are opened: on this machine, or wherever pyiceberg's settings lead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from fluss.lake.options import local_path
from fluss.model.trust import check_location, is_local

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


# In the properties with which files are opened, as JSON: where they may lie, and what the user lists.
PLACES: Final = "fluss.places"
LISTED: Final = "fluss.trusted"


def check_place(location: str, properties: Mapping[str, str]) -> None:
    """Raise for a file outside of the lake's places; without a list of them it is the caller's own."""
    if PLACES in properties:
        check_location(location, json.loads(properties[PLACES]), json.loads(properties.get(LISTED, "[]")))


def open_filesystem(location: str, properties: Mapping[str, str]) -> tuple[FileSystem, str]:
    """The file system of a location, and the location's path in it."""
    from pyarrow.fs import LocalFileSystem

    check_place(location, properties)
    if is_local(location):
        return LocalFileSystem(), str(local_path(location))
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, netloc, path = PyArrowFileIO.parse_location(location, dict(properties))
    return PyArrowFileIO(dict(properties)).fs_by_scheme(scheme, netloc), path


def path_of(location: str, properties: Mapping[str, str]) -> str:
    """A location's path in its file system, which is not opened."""
    if is_local(location):
        return str(local_path(location))
    from pyiceberg.io.pyarrow import PyArrowFileIO

    return str(PyArrowFileIO.parse_location(location, dict(properties))[2])
