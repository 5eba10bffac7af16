"""Many upsert writers of one client, run as `python -m tests.adversity.upsert_flood <address> <table> <writers>`.

Prints by how many bytes the process grew while they wrote.
"""

from __future__ import annotations

import os
import sys
import threading

import fluss.sync as fluss
from tests.kit.memory import MIB, Memory

BUFFER_BYTES = 16 * MIB
ROWS_PER_WRITER = 400
BLOB = b"x" * 8_000


def main(address: str, table_name: str, writers: int) -> None:
    failures: list[BaseException] = []

    def write(table: fluss.FlussTable, number: int) -> None:
        try:
            writer = table.new_upsert().create_writer()
            for row in range(ROWS_PER_WRITER):
                writer.upsert([number * ROWS_PER_WRITER + row, BLOB])
            writer.flush()
        except BaseException as error:
            failures.append(error)

    options = {"writer_buffer_memory_size": BUFFER_BYTES, "writer_batch_size": 256 << 10}
    with fluss.connect(address, **options) as connection:
        table = connection.get_table(fluss.TablePath("fluss", table_name))
        # What is made on first use is there before.
        write(table, 0)
        with Memory(os.getpid()) as memory:
            threads = [threading.Thread(target=write, args=(table, number)) for number in range(writers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    if failures:
        raise failures[0]
    print(memory.growth_bytes)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
