"""Where files of a lake are opened: on this machine, or wherever pyiceberg's settings lead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fluss.lake.options import is_local, local_path

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


def open_filesystem(location: str, properties: Mapping[str, str]) -> tuple[FileSystem, str]:
    """The file system of a location, and the location's path in it."""
    from pyarrow.fs import LocalFileSystem

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
