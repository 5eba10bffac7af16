"""Memory that the C library keeps: tried in a process of its own, for the settings stay."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has what is asked for")

GIVE_BACK = """
import psutil
from fluss.storage.allocator import give_back

rss = psutil.Process().memory_info
blocks = [bytes(4_096) for _ in range(20_000)]
kept = blocks[::100]
full = rss().rss
del blocks
give_back()
print(full - rss().rss)
"""

SHARE_ARENAS = """
import re, threading
from fluss.storage.allocator import share_arenas

share_arenas()
stay = threading.Barrier(9)

def work():
    blocks = [bytes(4_096) for _ in range(1_000)]
    stay.wait()
    stay.wait()

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
stay.wait()
import ctypes, os
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
reading, writing = os.pipe()
stream = ctypes.c_void_p(libc.fdopen(writing, b"w"))
libc.malloc_info(0, stream)
libc.fclose(stream)
print(len(re.findall(b"<heap nr=", os.read(reading, 1 << 16))))
stay.wait()
"""

ARROW_TOO = """
from fluss.storage.allocator import share_arenas

share_arenas()
import pyarrow as pa
print(int(pa.default_memory_pool().backend_name == "system"))
"""


def run(program: str) -> int:
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60).stdout)


def test_what_is_free_goes_back_to_the_system() -> None:
    assert run(GIVE_BACK) > 50 << 20


def test_threads_share_arenas() -> None:
    assert 1 <= run(SHARE_ARENAS) <= 2


def test_arrow_takes_its_memory_there_too() -> None:
    assert run(ARROW_TOO)
