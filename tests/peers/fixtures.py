"""Fixtures for tests with the real cluster and the real clients; loaded by tests/conftest.py."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeVar

import pytest

from fluss.testing import ApacheFluss
from fluss.testing.apache import DEFAULT_JVM_OPTIONS
from tests.peers import wedged
from tests.peers.javaclient import JavaPeer
from tests.peers.peer import Peer
from tests.peers.pyfluss import PyflussPeer

# The cluster lives for minutes: to compile much for its later speed takes longer than that saves.
_JVM_OPTIONS = {role: (*options, "-XX:TieredStopAtLevel=1") for role, options in DEFAULT_JVM_OPTIONS.items()}
SASL_USERS = {"alice": "alice-secret", "bob": "bob-secret"}

_T = TypeVar("_T", PyflussPeer, JavaPeer)
_P = TypeVar("_P", bound=Peer, covariant=True)


class PeerFactory(Protocol[_P]):
    """Starts a client in a new process; all are ended with the test session at the latest."""

    def __call__(self, bootstrap_servers: str, config: Mapping[str, str] | None = None) -> _P: ...


@pytest.fixture(scope="session")
def apache_fluss(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheFluss]:
    """One real cluster for the whole session: it takes seconds to start. Tests make databases of their own."""
    folder = tmp_path_factory.mktemp("apache-fluss")
    with ApacheFluss(folder, sasl_users=SASL_USERS, jvm_options=_JVM_OPTIONS) as cluster:
        wedged.watch(cluster)
        yield cluster
        wedged.forget(cluster)


@pytest.fixture(scope="session")
def pyfluss_peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerFactory[PyflussPeer]]:
    with _factory(PyflussPeer, tmp_path_factory) as factory:
        yield factory


@pytest.fixture(scope="session")
def java_peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerFactory[JavaPeer]]:
    with _factory(JavaPeer, tmp_path_factory) as factory:
        yield factory


@pytest.fixture(scope="session")
def new_name() -> Callable[[str], str]:
    """Names that no other test of the session uses."""
    numbers = itertools.count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


@contextlib.contextmanager
def _factory(kind: type[_T], directories: pytest.TempPathFactory) -> Iterator[PeerFactory[_T]]:
    started: list[Peer] = []

    def start(bootstrap_servers: str, config: Mapping[str, str] | None = None) -> _T:
        peer = kind(bootstrap_servers, directories.mktemp("peer"), config)
        started.append(peer)
        return peer

    yield start
    for peer in started:
        peer.process.kill()
