"""A retried batch is stored once and in order, whatever the network and the server do between two tries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fluss.protocol import api_keys
from fluss.testing import Action, Direction, Fault, FaultProxy, ProxyCounters
from tests.crash.servers import new_server
from tests.kit.loads.workload import Plan, Workload

PRODUCE = api_keys.PRODUCE_LOG.key
DROP_SHARE = 0.3
OPEN_DROP_SHARE = 0.05
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
OPEN = Storm(rows_per_writer=2_000, restarts=0, rows_between_restarts=0, end_s_max=90.0)
FULL = Storm(rows_per_writer=250_000, restarts=20, rows_between_restarts=8_000, end_s_max=3_000.0)


def write_through(directory: Path, seed: int, storm: Storm, faults: list[Fault]) -> ProxyCounters:
    """Write through a proxy with these faults, check that every row is stored once; returns what the proxy counted."""
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
        for fault in faults:
            proxy.add(fault)
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
    print(f"{total} rows in {batches} batches; {counters}")
    # Without these the test would prove nothing: the data came through the proxy, and some of it more than once.
    assert counters.requests_by_api[PRODUCE] > counters.responses_by_api[PRODUCE] > 0
    for fault in faults:
        assert counters.faults[fault.action] > 0
    return counters


def storm_faults() -> list[Fault]:
    produce = frozenset({PRODUCE})
    return [
        Fault(Action.DROP_AND_CUT, Direction.RESPONSE, produce, DROP_SHARE),
        Fault(Action.CUT_MID_FRAME, Direction.REQUEST, produce, CUT_SHARE),
        Fault(Action.FORWARD_AND_CUT, Direction.REQUEST, produce, CUT_SHARE),
    ]


def check_share(counters: ProxyCounters) -> None:
    """About the wanted share of answers was lost."""
    lost = counters.faults[Action.DROP_AND_CUT]
    assert lost > 0.8 * DROP_SHARE * (lost + counters.responses_by_api[PRODUCE])


def test_lost_answers_cut_connections_and_restarts_double_nothing(tmp_path: Path, seed: int) -> None:
    check_share(write_through(tmp_path, seed, SHORT, storm_faults()))


def test_an_answer_lost_on_a_connection_that_goes_on_doubles_nothing(tmp_path: Path, seed: int) -> None:
    """Later batches are acknowledged before the first one is known to be lost: it must still be known to the server."""
    write_through(tmp_path, seed, OPEN, [Fault(Action.DROP, Direction.RESPONSE, frozenset({PRODUCE}), OPEN_DROP_SHARE)])


@pytest.mark.full
@pytest.mark.timeout(3_600)
def test_a_million_rows_are_stored_exactly_once(tmp_path: Path, seed: int) -> None:
    check_share(write_through(tmp_path, seed, FULL, storm_faults()))
