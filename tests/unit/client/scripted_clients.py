"""Clients and writers of a scripted server."""

from __future__ import annotations

from typing import Any

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.client.write.writer import AppendWriterCore
from fluss.model.config import Config
from tests.kit.scripted import PATH, ScriptedServer


def client_of(server: ScriptedServer, **settings: Any) -> ClientCore:
    options = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    return run(ClientCore.connect(Config({"bootstrap.servers": server.address, **options})))


def writer_of(server: ScriptedServer, **settings: Any) -> AppendWriterCore:
    return run(client_of(server, **settings).table(PATH)).append_writer()
