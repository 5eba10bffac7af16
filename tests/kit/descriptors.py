"""How many files this process may have open."""

from __future__ import annotations

import resource

SPARE_FILES = 200


def allow_files(count: int) -> None:
    """Raise the bound to these and some to spare, as far as it may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_FILES
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else hard, hard))
