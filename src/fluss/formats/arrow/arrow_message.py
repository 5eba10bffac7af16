"""The metadata of one encapsulated Arrow record batch message, read before pyarrow touches bytes from the network.

What is read: where the body is, its field nodes, which buffers it holds and how large they become. pyarrow would trust
the announced sizes, and a few bytes can announce terabytes. `arrow_layout` says whether they fit a schema.
"""

from __future__ import annotations

from typing import NamedTuple

from fluss.formats import kernel


class MessageMetadata(NamedTuple):
    row_count: int
    body_start: int
    body_size_bytes: int
    nodes: tuple[int, ...]  # lengths and null counts, alternating
    buffers: tuple[int, ...]  # offsets and lengths, alternating; all lie in the body, and not on each other
    codec: int | None  # Arrow's number for it, None when nothing is compressed


class RecordBatchMessage(NamedTuple):
    metadata: MessageMetadata
    decoded_sizes: list[int]  # of the buffers
    decoded_size_bytes: int
    has_raw_buffers: bool  # some buffers are used where they lie, so their alignment matters

    @property
    def compressed(self) -> bool:
        return self.metadata.codec is not None


def parse_metadata(view: memoryview) -> MessageMetadata:
    """Read and check the metadata of the message at the start of `view`; raises `CorruptDataError`."""
    return MessageMetadata._make(kernel.read_message(view))


def parse_record_batch_message(view: memoryview) -> RecordBatchMessage:
    """The metadata of the message at the start of `view`, and what its body would take; raises `CorruptDataError`."""
    metadata = parse_metadata(view)
    sizes = kernel.decoded_sizes(view, metadata.body_start, metadata.buffers, metadata.codec is not None)
    return RecordBatchMessage(metadata, *sizes)
