"""The GIL is free while RocksDB syncs files."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fluss.storage.kv import unlocked_syncs
from tests.kit.slow_sync import Gate

EXPECT_COMPILED = os.environ.get("FLUSS_EXPECT_COMPILED") == "1" and sys.platform == "linux"
pytestmark = pytest.mark.skipif(
    not unlocked_syncs.IN_USE and not EXPECT_COMPILED,
    reason="the library for this was not built (set FLUSS_EXPECT_COMPILED=1)",
)

# The main thread opens the gate while a sync of the other one is held. It can do so only when it gets the GIL, and when
# what it does meanwhile waits for no lock of the other one.
PROGRAM = """
import sys, threading
from pathlib import Path
from fluss.storage.kv.store import MEMORY_BYTES_MIN, KvState
from fluss.storage.kv.rocks import open_store
from fluss.storage.kv.rocks_settings import Resources

folder, gate, what = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
held, resources = Path(f"{gate}.held"), Resources(MEMORY_BYTES_MIN)
folder.mkdir()
stores = []

def opened():
    stores.append(open_store(folder / "kv", resources))

def checkpointed():
    # Nothing is left to be flushed, which RocksDB would do in a thread of its own.
    stores[0].flush()
    gate.touch()
    stores[0].flush = stores[0]._merge_small_files = lambda: None
    stores[0].checkpoint(folder / "copy")

def use_with_gil(store):
    # All that takes locks of RocksDB with the GIL held: it would wait for ever for a lock of the sync's thread.
    store._put([b"other"], [b"value"], [], None)
    assert store.get_many([b"key"]) == [b"value"]
    assert store._rows[b"key"] == b"value"
    assert store.scan().keys == [b"key", b"other"]
    assert store._rows.live_files() and store.size_bytes() and store._failures() == 0
    store.flush()

if what != "create":
    opened()
    stores[0].write([b"key"], [b"value"], [], KvState(1, 1))
if what == "open":
    stores.pop().close()
if what != "checkpoint":
    gate.touch()
thread = threading.Thread(target=checkpointed if what == "checkpoint" else opened, daemon=True)
thread.start()
while not held.exists():
    assert thread.is_alive(), "no sync was held"
if what == "checkpoint":
    use_with_gil(stores[0])
gate.unlink()
while thread.is_alive():
    if what == "checkpoint":
        use_with_gil(stores[0])
assert stores[0].get_many([b"key"]) == [None if what == "create" else b"value"]
print("went on")
"""


@pytest.mark.parametrize("what", ["create", "open", "checkpoint"])
def test_other_threads_run_while_a_sync_is_held(tmp_path: Path, what: str) -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("needs a C compiler")
    slow = tmp_path / "slow"
    gate = Gate(tmp_path, slow)
    command = [sys.executable, "-c", PROGRAM, str(slow), gate.env["SLOW_SYNC_GATE"], what]
    result = subprocess.run(
        command, env={**os.environ, **gate.env, "SLOW_SYNC_MS": "20"}, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "went on\n"


def test_the_library_is_in_use_where_it_must_be() -> None:
    assert unlocked_syncs.IN_USE


def test_a_library_that_is_not_loaded_is_left_alone() -> None:
    library = importlib.import_module("fluss.storage._unlocked_syncs")
    assert library.redirect("/not/there.so") == 0
    with pytest.raises(TypeError):
        library.redirect(b"bytes")
