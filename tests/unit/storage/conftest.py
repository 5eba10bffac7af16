from __future__ import annotations

from collections.abc import Iterator

import pytest

from fluss.storage import failpoints


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()
