"""Fixtures for all tests live in the modules named here."""

import os

pytest_plugins = [
    "tests.peers.wedged",
    "tests.peers.fixtures",
    "tests.kit.backends",
    "tests.kit.seeds",
    "tests.compat.report",
]

# Who looks for a mistake of ours wants to see where it was raised.
os.environ.setdefault("FLUSS_INNER_FRAMES", "1")
# Spark's JVMs live for minutes here: to compile much for their later speed takes a third of their processor time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
