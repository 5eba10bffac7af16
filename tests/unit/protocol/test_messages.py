"""Messages: bytes of the real clients, and generated code that matches its source."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb

FETCH_BY_RUST = "08ffffffffffffffffff0110808080081a17080110002211100018feffffffffffffffff012080804020f4032801"
FETCH_BY_JAVA = "08ffffffffffffffffff0110808080081a19080110001a002211100018feffffffffffffffff012080804020f4032801"


def fetch() -> pb.FetchLogRequest:
    bucket = pb.PbFetchLogBucketRequest(bucket_id=0, fetch_offset=-2, max_fetch_bytes=1 << 20)
    table = pb.PbFetchLogTableRequest(table_id=1, projection_pushdown_enabled=False, buckets_req=[bucket])
    return pb.FetchLogRequest(
        follower_server_id=-1, max_bytes=16 << 20, tables_req=[table], max_wait_ms=500, min_bytes=1
    )


def test_fetch_vectors() -> None:
    assert fetch().SerializeToString().hex() == FETCH_BY_RUST
    assert pb.FetchLogRequest.FromString(bytes.fromhex(FETCH_BY_RUST)) == fetch()
    # Java writes the empty packed field out.
    assert pb.FetchLogRequest.FromString(bytes.fromhex(FETCH_BY_JAVA)) == fetch()


def test_absent_error_code_differs_from_zero() -> None:
    assert not pb.PbProduceLogBucketResponse(bucket_id=0).HasField("error_code")
    assert pb.PbProduceLogBucketResponse(bucket_id=0, error_code=0).HasField("error_code")


def test_generated_code_is_current(tmp_path: Path) -> None:
    root = Path(str(importlib.resources.files("fluss"))).parent
    output = tmp_path / "descriptors"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"--descriptor_set_out={output}"]
    subprocess.run([*command, "fluss/protocol/messages.proto"], check=True, cwd=tmp_path)
    expected = FileDescriptorSet.FromString(output.read_bytes()).file[0]
    actual = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    for descriptor in (expected, actual):
        for message in descriptor.message_type:
            for field in message.field:
                field.ClearField("json_name")  # written by some compiler versions only
    assert actual == expected, "run `make proto` and commit the result"


def test_api_keys_are_unique_and_named_after_their_messages() -> None:
    assert len(api_keys.BY_KEY) == len(api_keys.ALL)
    for api in api_keys.ALL:
        assert api.request.DESCRIPTOR.name == f"{api.name}Request"
        assert api.response.DESCRIPTOR.name == f"{api.name}Response"
    assert [api.name for api in api_keys.ALL if not api.needs_login] == ["ApiVersions", "Authenticate"]
