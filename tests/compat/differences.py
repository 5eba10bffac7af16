"""Known differences between servers and clients, from differences.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit import backends

OUR_CLIENT, PYFLUSS, JAVA = "our client", "pyfluss", "Java"
OUR_SERVER, EMBEDDED, APACHE = "our server", "embedded", "Apache Fluss"
CLIENTS = (OUR_CLIENT, PYFLUSS, JAVA)
SERVERS = (OUR_SERVER, EMBEDDED, APACHE)

_BY_KIND = {backends.OURS: OUR_SERVER, backends.EMBEDDED: EMBEDDED, backends.APACHE: APACHE}


@dataclass(frozen=True)
class Difference:
    """One behaviour that is not the same everywhere; `values` by server or client."""

    feature: str
    what: str
    values: dict[str, Any]
    reason: str

    def place(self, client: str, server: str) -> str | None:
        """Whose value holds for a client on a server; embedded is this project's server in another guise."""
        places = (client, server, OUR_SERVER if server == EMBEDDED else server)
        return next((place for place in places if place in self.values), None)


def server_name(kind: str) -> str:
    """The name under which a kind of backend goes in tables for readers."""
    return _BY_KIND[kind]


def load() -> dict[str, Difference]:
    with Path(__file__).with_name("differences.toml").open("rb") as source:
        return {name: Difference(**entry) for name, entry in tomllib.load(source).items()}


def expected(client: str, server: str) -> dict[str, Any]:
    """What tests have to see for this client on this server, by the names of the differences that concern it."""
    places = {name: (known, known.place(client, server)) for name, known in load().items()}
    return {name: known.values[place] for name, (known, place) in places.items() if place is not None}
