"""The program that uses the whole API runs on every kind of address."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit import whole_api
from tests.kit.backends import Backend

DEADLINE_S = 120.0


@pytest.mark.feature("Every method of the API, in one program")
def test_whole_program(backend: Backend) -> None:
    asyncio.run(asyncio.wait_for(whole_api.main(backend.bootstrap_servers), DEADLINE_S))
