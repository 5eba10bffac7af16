"""Tiering through a REST catalog: Iceberg's own, in a JVM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyiceberg.catalog.rest import RestCatalog

from fluss.lake.format import LakeConflictError
from fluss.lake.options import LakeOptions
from fluss.lake.report import Status
from fluss.lake.tiering.service import tier
from fluss.lake.tiering.task import LocalExecutor
from fluss.sync import TablePath
from fluss.testing import FlussServer
from tests.kit.lake.oracle import arranged, expected_rows
from tests.kit.lake.samples import KINDS, LOG, Sample
from tests.peers.ourclient import OurPeer
from tests.peers.restcatalog import rest_catalog

pytestmark = pytest.mark.compat

DATABASE = "rest"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("rest")
    with rest_catalog(folder) as address:
        yield {"type": "rest", "uri": address, "warehouse": str(folder / "rest-warehouse")}


@pytest.fixture(scope="module")
def peer(lake_server: FlussServer) -> Iterator[OurPeer]:
    made = OurPeer(lake_server.bootstrap_servers)
    made.create_database(DATABASE)
    yield made
    made.close()


@pytest.mark.parametrize("sample", KINDS, ids=lambda sample: sample.name)
def test_tables_are_tiered(catalog: dict[str, str], peer: OurPeer, sample: Sample) -> None:
    path = TablePath(DATABASE, sample.name)
    sample.create(peer, DATABASE)
    for turn in (0, 1):
        sample.write(peer, DATABASE, turn)
        [report] = tier(peer.conn, LocalExecutor(peer.conn), tables=[path], catalog=catalog)
        assert report.status is Status.TIERED, report
        found = RestCatalog("any", uri=catalog["uri"]).load_table((DATABASE, sample.name))
        assert arranged(found.scan().to_arrow().to_pylist()) == expected_rows(peer, DATABASE, sample.name)
        assert peer.admin.get_latest_lake_snapshot(path).snapshot_id == report.snapshot_id
    union = peer.conn.get_table(path).new_scan().union(catalog=catalog).to_arrow()
    assert union.num_rows == len(expected_rows(peer, DATABASE, sample.name))


def test_a_commit_that_lost_a_race_is_refused(catalog: dict[str, str], peer: OurPeer) -> None:
    sample = LOG.renamed("raced")
    sample.create(peer, DATABASE)
    info = peer.admin.get_table_info(TablePath(DATABASE, sample.name))
    options = LakeOptions.from_properties(catalog)
    first, second = (options.open().ensure_table(info) for _ in range(2))
    first.commit([], [], "first")
    with pytest.raises(LakeConflictError):
        second.commit([], [], "second")
