"""A retried batch is stored once and in order, whatever the network and the server do between two tries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fluss.protocol import api_keys
from fluss.testing import Action, Direction, Fault, FaultProxy
from tests.crash.servers import new_server
from tests.crash.workload import Plan, Workload

PRODUCE = api_keys.PRODUCE_LOG.key
DROP_SHARE = 0.3
SILENT_DROP_SHARE = 0.01
CUT_SHARE = 0.02
# A swallowed answer on an open connection costs the client this long.
REQUEST_TIMEOUT_MS = 500


@dataclass(frozen=True)
class Storm:
    rows_per_writer: int
    restarts: int
    rows_between_restarts: int
    end_s_max: float


SHORT = Storm(rows_per_writer=5_000, restarts=2, rows_between_restarts=800, end_s_max=90.0)
FULL = Storm(rows_per_writer=250_000, restarts=20, rows_between_restarts=8_000, end_s_max=3_000.0)


def write_through_faults(directory: Path, seed: int, storm: Storm) -> None:
    plan = Plan(
        row_writers=1,
        batch_writers=3,
        plain_writers=0,
        rows_per_writer=storm.rows_per_writer,
        writer_options={"request-timeout-ms": REQUEST_TIMEOUT_MS, "writer.delivery-timeout-ms": 600_000},
    )
    with FaultProxy(seed=seed) as proxy, new_server(directory, args=["--advertise", proxy.address]) as server:
        proxy.set_target(server.bootstrap_servers)
        load = Workload(server.bootstrap_servers, seed, plan, clients_address=proxy.address)
        load.prepare()
        produce = frozenset({PRODUCE})
        proxy.drop_responses(produce, probability=DROP_SHARE)
        proxy.drop_responses(produce, probability=SILENT_DROP_SHARE, cut=False)
        proxy.cut_mid_frame(Direction.REQUEST, produce, probability=CUT_SHARE)
        proxy.add(Fault(Action.FORWARD_AND_CUT, Direction.REQUEST, produce, CUT_SHARE))
        with load:
            for _ in range(storm.restarts):
                load.await_progress(storm.rows_between_restarts)
                server.restart()
            stored = load.finish(end_s_max=storm.end_s_max, ask=False)
        counters = proxy.counters
    total = storm.rows_per_writer * len(load.writers)
    assert load.acknowledged == total
    assert sum(content.latest for content in stored.values()) == total
    batches = sum(len(content.batches) for content in stored.values())
    sent, answers = counters.requests_by_api[PRODUCE], counters.responses_by_api[PRODUCE]
    print(f"{total} rows in {batches} batches; {sent} requests, {answers} answers, faults {dict(counters.faults)}")
    # Without these the test would prove nothing: the data came through the proxy, and much of it more than once.
    assert counters.faults[Action.DROP_AND_CUT] > 0.2 * answers
    assert counters.faults[Action.DROP] > 0
    assert counters.faults[Action.CUT_MID_FRAME] > 0
    assert counters.faults[Action.FORWARD_AND_CUT] > 0
    assert sent > answers


def test_lost_answers_cut_connections_and_restarts_double_nothing(tmp_path: Path, seed: int) -> None:
    write_through_faults(tmp_path, seed, SHORT)


@pytest.mark.full
@pytest.mark.timeout(3_600)
def test_a_million_rows_are_stored_exactly_once(tmp_path: Path, seed: int) -> None:
    write_through_faults(tmp_path, seed, FULL)
