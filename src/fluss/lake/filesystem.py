"""Where files of a lake are opened: on this machine, or wherever pyiceberg's settings lead."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fluss.lake.options import local_path
from fluss.model.errors import FlussError
from fluss.model.trust import check_location, is_local

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


# In the properties with which files are opened, as JSON: where they may lie, and what the user lists.
PLACES: Final = "fluss.places"
LISTED: Final = "fluss.trusted"


# Where S3 is, if the settings of the lake do not say it: variables of the reader's own, in this order.
_ENDPOINT: Final = "s3.endpoint"
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS: Final = ("s3.region", "client.region")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REGION_DEFAULT: Final = "us-east-1"  # which servers take that have no regions


def with_environment(properties: Mapping[str, str]) -> dict[str, str]:
    """Settings with which files are opened, and what this process's environment says of the place of S3.

    PyArrow finds credentials there, but neither the endpoint nor a region that goes with it. Without an endpoint it is
    Amazon's, and the region is asked for.
    """
    found = dict(properties)
    endpoint = found.get(_ENDPOINT) or _variable(_ENDPOINT_VARIABLES)
    region = _variable(_REGION_VARIABLES) or (_REGION_DEFAULT if endpoint else None)
    if endpoint:
        found[_ENDPOINT] = endpoint
    if region and not any(key in found for key in _REGIONS):
        found[_REGIONS[0]] = region
    return found


def _variable(names: Sequence[str]) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)


# How PyArrow says what S3 has answered, and what that means.
_ANSWER: Final = re.compile(r"bucket '([^']*)'.*?AWS Error (\w+|\[code \d+\]) during \w+ operation: (.*)", re.DOTALL)
_DETAILS: Final = re.compile(r"Details: (.*)", re.DOTALL)
_REFUSALS: Final = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "[code 15]")
_CREDENTIALS: Final = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or s3.access-key-id and s3.secret-access-key"


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise what an object store refuses as an error that says what to check."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        answer = _ANSWER.search(str(error))
        if answer is None:
            raise
        raise FlussError(_advice(*answer.groups())) from error


def _advice(bucket: str, code: str, text: str) -> str:
    if code in _REFUSALS:
        return f"S3 refuses access to the bucket {bucket} ({code}): check {_CREDENTIALS}, and their rights."
    if code == "NO_SUCH_BUCKET":
        return f"There is no bucket {bucket} where S3 is: create it, or check the warehouse, s3.endpoint and s3.region."
    details = _DETAILS.search(text)
    plain = " ".join((details[1] if details else text).split())
    if code == "NETWORK_CONNECTION":
        return f"S3 does not answer: {plain}. Check s3.endpoint or AWS_ENDPOINT_URL, and s3.region or AWS_REGION."
    return f"S3 failed for the bucket {bucket} ({code}): {plain}"


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
