"""Fixtures for all tests live in the modules named here."""

pytest_plugins = ["tests.peers.fixtures", "tests.backends", "tests.compat.report"]
