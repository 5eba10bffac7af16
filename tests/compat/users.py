"""A table of users with a primary key, as every client writes and reads it."""

from __future__ import annotations

from typing import Any

from tests.compat.conftest import Cluster
from tests.compat.differences import PYFLUSS
from tests.peers.peer import Record, Row

USERS = {"id": "INT", "name": "STRING", "age": "BIGINT"}


def create(cluster: Cluster, by: str, database: str, table: str, columns: dict[str, str], **options: Any) -> None:
    cluster.create_table(by, database, table, columns, **{"primary_keys": ["id"], **options})


def user(number: int, name: str | None = None, age: int | None = None) -> Row:
    return {"id": number, "name": name, "age": age}


def seen(records: list[Record]) -> list[tuple[int, str, Row]]:
    return [(record.offset, record.change, record.row) for record in records]


def few_buckets(cluster: Cluster) -> dict[str, Any]:
    """The clients that agree on buckets."""
    return {name: client for name, client in cluster.clients.items() if name != PYFLUSS}
