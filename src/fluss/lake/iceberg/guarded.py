"""pyiceberg's catalogs, with what a catalog or a table says taken as data: neither chooses code, hosts or credentials.

Files are opened by a FileIO of our own, and only in the places that the lake's options allow. Of what a catalog service
answers about its storage the region is taken, and credentials that it hands out. An endpoint is taken with such
credentials only, and on hosts that are trusted: the user's own never sign for an endpoint that somebody else chose.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io import FileIO, InputFile, OutputFile, load_file_io
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from sqlalchemy import select
from sqlalchemy.orm import Session as SqlSession
from urllib3.connection import port_by_scheme
from urllib3.util import parse_url

from fluss.lake.filesystem import LISTED, PLACES, check_place, with_environment
from fluss.lake.options import REST, LakeOptions
from fluss.model.trust import Trust, is_inside, names_code, split_address, warn_once

_IO: Final = "py-io-impl"
_OWN_IO: Final = f"{__name__}.PlacedFileIO"
# Of a catalog service's configuration; how its addresses are made, and the region of its storage.
_ANSWERS: Final = ("prefix", "namespace-separator", "rest-page-size", "view-endpoints-supported", "endpoints")
_REGIONS: Final = ("s3.region", "client.region", "s3.force-virtual-addressing")
_S3_LOGIN: Final = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
_LOGINS: Final = (*_S3_LOGIN, "gcs.oauth2.token", "gcs.oauth2.token-expires-at")
_ENDPOINT: Final = "s3.endpoint"
_OF_FLUSS: Final = "fluss."  # properties of the Fluss table, kept for people to see


class PlacedFileIO(PyArrowFileIO):  # type: ignore[misc]
    """Opens files in the places that its properties list, and nowhere else."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(with_environment(properties))

    def new_input(self, location: str) -> PyArrowFile:
        check_place(location, self.properties)
        return super().new_input(location)

    def new_output(self, location: str) -> PyArrowFile:
        check_place(location, self.properties)
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        check_place(location if isinstance(location, str) else location.location, self.properties)
        super().delete(location)


def make_catalog(options: LakeOptions, uri: str) -> GuardedCatalog:
    """The catalog that options name, at an address as pyiceberg spells it."""
    given = {_IO: _OWN_IO, **options.properties}
    given |= {PLACES: json.dumps(options.places), LISTED: json.dumps(options.trust.listed)}
    if options.warehouse is not None:
        given["warehouse"] = options.warehouse
    if options.type == REST:
        return GuardedRestCatalog(options.name, options.trust, **given, uri=uri)
    return GuardedSqlCatalog(options.name, **given, uri=uri)


class _Guarded:
    """A catalog whose answers about tables are taken as data, without what would choose code."""

    def load_table(self, identifier: Any) -> Table:
        table: Table = super().load_table(identifier)  # type: ignore[misc]
        _drop_code(table.metadata)
        return table

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        response: CommitTableResponse = super().commit_table(table, requirements, updates)  # type: ignore[misc]
        _drop_code(response.metadata)
        return response


class GuardedSqlCatalog(_Guarded, SqlCatalog):  # type: ignore[misc]
    """A catalog in a database."""

    def _load_file_io(self, properties: Mapping[str, str] | None = None, location: str | None = None) -> FileIO:
        """Whatever the table's properties say."""
        return load_file_io(self.properties, location)

    def names_below(self, location: str) -> list[tuple[str, ...]]:
        """The names of tables whose metadata is below a location; none of them is opened."""
        wanted = IcebergTables.catalog_name == self.name
        with SqlSession(self.engine) as session:
            rows = session.scalars(select(IcebergTables).where(wanted)).all()
        found = [row for row in rows if row.metadata_location and is_inside(row.metadata_location, [location])]
        return [(*self.identifier_to_tuple(row.table_namespace), row.table_name) for row in found]


class GuardedRestCatalog(_Guarded, RestCatalog):  # type: ignore[misc]
    """A catalog service. Its session dials no other host than the one that was named."""

    def __init__(self, name: str, trust: Trust, **properties: str) -> None:
        self._trust = trust
        self._given = dict(properties)
        self._said: dict[str, str] = {}
        super().__init__(name, **properties)

    def _create_session(self) -> Session:
        session: Session = super()._create_session()
        own = [self._given["uri"], self._given.get("oauth2-server-uri", "")]
        for scheme in ("http://", "https://"):
            session.mount(scheme, _KnownHosts(self._trust, own))
        return session

    def _fetch_config(self) -> None:
        """Take the service's configuration, but for everything that is not its business."""
        super()._fetch_config()
        said = dict(self.__dict__["properties"])
        self._said = {key: value for key, value in said.items() if key not in self._given}
        self.properties = {**self._given, **{key: said[key] for key in _ANSWERS if key in said}}
        self.uri = self._given["uri"]

    def _load_file_io(self, properties: Mapping[str, str] | None = None, location: str | None = None) -> FileIO:
        return load_file_io({**self.properties, **self._storage({**self._said, **(properties or {})})}, location)

    def names_below(self, location: str) -> list[tuple[str, ...]]:
        """The names of tables whose metadata is below a location. The service is asked for each table that it has."""
        names = [name for space in self.list_namespaces() for name in self.list_tables(space)]
        return [name for name in names if is_inside(self.load_table(name).metadata_location, [location])]

    def _storage(self, said: Mapping[str, str]) -> dict[str, str]:
        """What is taken of settings of the storage; the user's own stand."""
        found = {key: said[key] for key in _REGIONS if key in said and key not in self._given}
        if any(key in self._given for key in _LOGINS):
            return found
        found |= {key: said[key] for key in _LOGINS if key in said}
        if _ENDPOINT in said and _ENDPOINT not in self._given:
            found |= self._endpoint(said[_ENDPOINT], has_login=set(_S3_LOGIN[:2]) <= said.keys())
        return found

    def _endpoint(self, endpoint: str, *, has_login: bool) -> dict[str, str]:
        uri = self._given["uri"]
        if not has_login:
            warn_once(
                f"The lake's catalog {uri} names the endpoint {endpoint}, which is left out: it came without "
                f"credentials, and yours are not for it. Set {_ENDPOINT} in your own settings of the lake."
            )
            return {}
        parts, own = split_address(endpoint), split_address(uri)
        is_own = parts is not None and own is not None and parts.hostname == own.hostname
        if not is_own and not self._trust.allows_host(endpoint):
            raise self._trust.untrusted("The lake's catalog", [endpoint])
        return {_ENDPOINT: endpoint}


GuardedCatalog: TypeAlias = GuardedSqlCatalog | GuardedRestCatalog


class _KnownHosts(HTTPAdapter):
    """Sends requests to some hosts, wherever a redirect leads."""

    def __init__(self, trust: Trust, own: Sequence[str]) -> None:
        super().__init__()
        self._trust = trust
        self._own = [_dialled(address) for address in own if address]

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        address = _dialled(request.url or "")
        parts = split_address(address)
        if address not in self._own and (parts is None or not self._trust.lists_host(parts)):
            raise self._trust.untrusted("The lake's catalog", [address])
        return super().send(request, *args, **kwargs)


def _dialled(address: str) -> str:
    """Scheme, host and port as urllib3 finds them, which dials them."""
    url = parse_url(address)
    return f"{url.scheme}://{url.host}:{url.port or port_by_scheme.get(url.scheme or '', 0)}"


def _drop_code(metadata: TableMetadata) -> None:
    """Take out what would choose code, such as the class that makes paths of new files."""
    for key in [key for key in metadata.properties if names_code(key) and not key.startswith(_OF_FLUSS)]:
        warn_once(f"A table of the lake at {metadata.location} has the property {key}, which is not followed.")
        del metadata.properties[key]
