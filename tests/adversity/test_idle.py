"""A server that closes idle connections: programs that pause do not notice."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

import fluss.sync as fluss
from fluss.testing import FlussServer
from tests.kit.thread_server import Wire

IDLE_MS = 400
PATH = fluss.TablePath("fluss", "paused")
LOG_PATH = fluss.TablePath("fluss", "paused_log")


def test_a_client_that_pauses_goes_on_silently(tmp_path: Path) -> None:
    settings = tmp_path / "fluss.toml"
    settings.write_text(f"[limits]\nconnection_idle_ms_max = {IDLE_MS}\n")
    with (
        FlussServer(tmp_path / "data", args=["--config", str(settings)]) as server,
        fluss.connect(server.bootstrap_servers) as connection,
    ):
        schema = fluss.Schema.builder().column("id", fluss.DataTypes.int()).column("name", fluss.DataTypes.string())
        admin = connection.get_admin()
        admin.create_table(PATH, fluss.TableDescriptor(schema.primary_key(["id"]).build(), bucket_count=1))
        log_schema = fluss.Schema.builder().column("id", fluss.DataTypes.int()).build()
        admin.create_table(LOG_PATH, fluss.TableDescriptor(log_schema, bucket_count=1))
        table, log = connection.get_table(PATH), connection.get_table(LOG_PATH)
        upserts, appends = table.new_upsert().create_writer(), log.new_append().create_writer()
        lookuper = table.new_lookup().create_lookuper()
        for number in range(4):
            upserts.upsert({"id": number, "name": f"n{number}"})
            upserts.flush()
            appends.append({"id": number})
            appends.flush()
            assert lookuper.lookup({"id": number}) == {"id": number, "name": f"n{number}"}
            assert PATH.table_name in admin.list_tables("fluss")
            await_connections_closed(server)
        scanner = log.new_scan().create_log_scanner()
        scanner.subscribe(0, 0)
        rows = []
        while len(rows) < 4:
            rows += [record.row["id"] for record in scanner.poll(1_000)]
        assert rows == [0, 1, 2, 3]


def await_connections_closed(server: FlussServer) -> None:
    """Wait until the server says that it has closed everything."""
    deadline = time.monotonic() + 20
    while any(item.status == "ESTABLISHED" for item in psutil.Process(server.pid).net_connections()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # It still takes new ones.
    Wire("127.0.0.1", server.port).socket.close()
