"""The writer id of a client: asked for once, and again when a bucket's numbers are spent."""

from __future__ import annotations

from fluss.client.cluster.metadata import Metadata
from fluss.doors import randomness
from fluss.model.errors import ConnectError
from fluss.model.paths import TablePath
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb


class WriterIds:
    """The current id. A bucket that gave up an id never gets the same one again."""

    def __init__(self, metadata: Metadata, timeout_s: float) -> None:
        self._metadata = metadata
        self._timeout_s = timeout_s
        self.current: int | None = None

    def give_up(self, writer_id: int | None) -> None:
        """A bucket can't use this id any more; others that do go on with it."""
        if writer_id == self.current:
            self.current = None

    async def fetch(self, path: TablePath) -> None:
        """Ask any tablet server for an id, on behalf of a writer of one table."""
        if not self._metadata.cluster.tablets:
            await self._metadata.refresh(path)
        nodes = list(self._metadata.cluster.tablets.values())
        if not nodes:
            raise ConnectError("The cluster has no tablet server at the moment.")
        open_nodes = [node for node in nodes if self._metadata.ready(node) is not None]
        connection = await self._metadata.tablet(randomness.chance.choice(open_nodes or nodes), self._timeout_s)
        request = pb.InitWriterRequest()
        request.table_path.add(database_name=path.database_name, table_name=path.table_name)
        self.current = (await connection.request(api_keys.INIT_WRITER, request, self._timeout_s)).writer_id
