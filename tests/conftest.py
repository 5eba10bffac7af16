"""Fixtures for all tests live in tests/peers/fixtures.py; this file only loads them."""

pytest_plugins = ["tests.peers.fixtures"]
