"""A catalog service that answers with more than data, and a listener that counts who dials it."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.table import CommitTableRequest, Table

FOREIGN = "127.0.0.2"  # not one of the names of loopback, so another machine for all a client knows
LOOPBACK = "127.0.0.1"

_TABLE = re.compile(r"/v1/namespaces/([^/]+)/tables/([^/?]+)")


class Listener:
    """Counts connections, and answers none."""

    def __init__(self, host: str = FOREIGN) -> None:
        self._socket = socket.create_server((host, 0))
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self.count = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.count += 1
                connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


class HostileCatalog:
    """Iceberg's REST protocol over a catalog in SQLite; `config` and `table_config` are what it adds to its answers."""

    def __init__(self, folder: Path, host: str = LOOPBACK) -> None:
        self.warehouse = folder / "warehouse"
        self.warehouse.mkdir(parents=True)
        self.config: dict[str, str] = {}
        self.table_config: dict[str, str] = {}
        self.table_location: str | None = None
        self.redirect: str | None = None
        self.requests: list[str] = []
        uri = f"sqlite:///{folder}/backing.db"
        self.tables = SqlCatalog("backing", uri=uri, warehouse=str(self.warehouse))
        self._http = HTTPServer((host, 0), _handler(self))
        self.uri = f"http://{host}:{self._http.server_port}"

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        self.requests.append(f"{method} {path}")
        if path.startswith("/v1/config"):
            return 200, {"defaults": self.config, "overrides": self.config}
        found = _TABLE.match(path)
        if found is not None:
            return self._table(method, (found[1], found[2]), body)
        if method == "POST" and path.endswith("/tables"):
            request = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
            return 200, self._described(self._create(path.split("/")[3], request))
        if method == "POST":
            with suppress(NamespaceAlreadyExistsError):
                self.tables.create_namespace(tuple(json.loads(body)["namespace"]))
            return 200, {"namespace": json.loads(body)["namespace"], "properties": {}}
        return 204, None

    def _create(self, namespace: str, request: CreateTableRequest) -> Table:
        return self.tables.create_table(
            (namespace, request.name),
            request.table_schema,
            location=self.table_location,
            partition_spec=request.partition_spec,
            sort_order=request.write_order,
            properties=request.properties,
        )

    def _table(self, method: str, name: tuple[str, str], body: bytes) -> tuple[int, Any]:
        try:
            table = self.tables.load_table(name)
        except NoSuchTableError:
            return 404, {"error": {"message": "no such table", "type": "NoSuchTableException", "code": 404}}
        if method == "POST":
            request = CommitTableRequest.model_validate_json(body)
            self.tables.commit_table(table, request.requirements, request.updates)
        return 200, self._described(self.tables.load_table(name))

    def _described(self, table: Table) -> dict[str, Any]:
        metadata = json.loads(table.metadata.model_dump_json())
        metadata["properties"] |= self.table_config
        return {"metadata-location": table.metadata_location, "metadata": metadata, "config": self.table_config}

    def serve(self) -> None:
        self._http.serve_forever(poll_interval=0.01)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self.tables.close()


@contextmanager
def hostile_catalog(folder: Path, host: str = LOOPBACK) -> Iterator[HostileCatalog]:
    """A running one."""
    catalog = HostileCatalog(folder, host)
    thread = threading.Thread(target=catalog.serve)
    thread.start()
    try:
        yield catalog
    finally:
        catalog.close()
        thread.join()


def _handler(catalog: HostileCatalog) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if catalog.redirect is not None:
                self.send_response(307)
                self.send_header("Location", catalog.redirect)
                self.end_headers()
                return
            status, content = catalog.answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            if content is not None and self.command != "HEAD":
                self.wfile.write(json.dumps(content).encode())

        do_GET = do_HEAD = do_POST = do_DELETE = _answer  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    return Handler


def server_settings(folder: Path, lake: Mapping[str, str]) -> list[str]:
    """Arguments of a server whose operator has set this about the lake."""
    file = folder / "hostile.toml"
    file.write_text("".join(f'"datalake.iceberg.{key}" = {json.dumps(value)}\n' for key, value in lake.items()))
    return ["--config", str(file)]
