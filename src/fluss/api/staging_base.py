"""What staged writes of all facades share."""

from __future__ import annotations

from fluss.client.staging import StagedWriteCore


class StagedWriteBase:
    """One batch of a query, stored once however often it is written. Obtain with `table.new_staged_write(...)`.

    Tasks write with writers of their own, each attempt under a number of its own; nobody sees their rows. `commit`
    names the attempts that count and stores their rows. An error before it has begun leaves nothing; once it has, it is
    carried out whatever happens, and when it is repeated with the same rows nothing is stored again. Batches of a query
    are committed in the order of their ids: one before the last, or the last one with other rows, is refused, and the
    error says what to do. Only a Flussbett server can do this; what nobody commits within a day it forgets.
    """

    def __init__(self, core: StagedWriteCore) -> None:
        self._core = core
        self.is_repeated = False
        """Whether the batch had been committed before `commit` was called."""

    @property
    def query_id(self) -> str:
        return self._core.query_id

    @property
    def batch_id(self) -> int:
        return self._core.batch_id

    def __repr__(self) -> str:
        return f"StagedWrite({self._core.info.table_path}, query_id={self.query_id!r}, batch_id={self.batch_id})"
