"""The one failure of a test that is answered by running it again: the real cluster's own.

The coordinator of Apache Fluss 0.9 elects no leaders any more once two of its own messages overtake each other, whoever
asks. A restart cures it. So a test on the shared cluster that failed for want of a leader runs once more after that; no
other failure does.
"""

from __future__ import annotations

from typing import Final

import pytest
from _pytest.runner import runtestprotocol

from fluss.testing import ApacheFluss

_CLUSTERS: Final[list[ApacheFluss]] = []
_TEXTS: Final = ("have no leader after", "no leader for", "without a leader")


def watch(cluster: ApacheFluss) -> None:
    """Restart this cluster when it has wedged."""
    _CLUSTERS.append(cluster)


def forget(cluster: ApacheFluss) -> None:
    _CLUSTERS.remove(cluster)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if item.get_closest_marker("compat") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if _CLUSTERS and any(map(_lacked_a_leader, reports)):
        for cluster in _CLUSTERS:
            cluster.restart()
        item._initrequest()  # type: ignore[attr-defined]
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _lacked_a_leader(report: pytest.TestReport) -> bool:
    return report.failed and any(text in report.longreprtext for text in _TEXTS)
