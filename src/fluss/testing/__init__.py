"""Launchers and a fault proxy for tests against real processes.

* `ApacheFluss`: a real Apache Fluss 0.9.1 cluster on loopback, fetched by Maven.
* `FlussServer`: this package's server as a subprocess.
* `FaultProxy`: a TCP proxy that knows the wire's frames and breaks them on purpose.
"""

from __future__ import annotations

from fluss.testing.apache import ApacheFluss
from fluss.testing.faults import Action, Direction, Fault, ProxyCounters
from fluss.testing.processes import ProcessFailedError
from fluss.testing.proxy import FaultProxy
from fluss.testing.server import FlussServer

__all__ = [
    "Action",
    "ApacheFluss",
    "Direction",
    "Fault",
    "FaultProxy",
    "FlussServer",
    "ProcessFailedError",
    "ProxyCounters",
]
