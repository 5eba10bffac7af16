"""Random tests here are many and quick; on a busy machine a single one may still take long, which proves nothing."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
