"""What a process that only serves does not load."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SCRIPT = """
import sys
from fluss.server.process import prepare_process
prepare_process()
import fluss.server.server
from fluss.protocol import messages_pb2 as pb
sent = pb.ErrorResponse(error_code=3, error_message="text")
message = pb.ErrorResponse.FromString(sent.SerializeToString())
assert (message.error_code, message.error_message) == (3, "text")
print("google.protobuf.internal.decoder" in sys.modules)
from google.protobuf.internal import python_message
assert python_message.GeneratedProtocolMessageType
assert "error_code: 3" in str(message)
"""


@pytest.mark.parametrize(("implementation", "is_loaded"), [("upb", "False"), ("python", "True")])
def test_protobuf_in_python_is_loaded_where_it_is_used(implementation: str, is_loaded: str) -> None:
    environment = os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation}
    result = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (result.stderr, result.stdout.strip()) == ("", is_loaded)
