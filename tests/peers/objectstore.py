"""A server that speaks S3, on loopback: moto's."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from fluss.testing.processes import ManagedProcess
from tests.peers.environments import s3_python

_TIMEOUT_S = 60.0
_READY = r".*Running on (http://127\.0\.0\.1:\d+)"
# What tells it that a request is of the service in which users are made; the signature is not looked at.
_IAM = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=0"
_ALL_RIGHTS = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


@dataclass(frozen=True)
class Login:
    """What a request is signed with."""

    key_id: str
    secret: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables in which programs look for it."""
        return {"AWS_ACCESS_KEY_ID": self.key_id, "AWS_SECRET_ACCESS_KEY": self.secret}


class ObjectStore:
    """A running one, whose only user is `login`."""

    def __init__(self, endpoint: str, log_file: Path) -> None:
        self.endpoint = endpoint
        self._log_file = log_file
        self._ask("POST", "", _form(Action="CreateUser", UserName="ada"))
        rights = json.dumps(_ALL_RIGHTS)
        self._ask("POST", "", _form(Action="PutUserPolicy", UserName="ada", PolicyName="all", PolicyDocument=rights))
        made = self._ask("POST", "", _form(Action="CreateAccessKey", UserName="ada")).decode()
        [key_id], [secret] = (
            re.findall(f"<{name}>(.*?)</{name}>", made) for name in ("AccessKeyId", "SecretAccessKey")
        )
        self.login = Login(key_id, secret)

    def create_bucket(self, name: str) -> None:
        """Before `demand_login`."""
        self._ask("PUT", name)

    def demand_login(self) -> None:
        """From now on requests have to be signed."""
        self._ask("POST", "moto-api/reset-auth", b"0")

    @property
    def requests(self) -> list[str]:
        """What was asked for so far, as lines of its log."""
        return [line for line in self._log_file.read_text().splitlines() if '" ' in line]

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        headers = {"Content-Type": "text/plain"} if path else {"Authorization": _IAM}
        request = urllib.request.Request(f"{self.endpoint}/{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return bytes(answer.read())


def _form(**values: str) -> bytes:
    return urlencode({"Version": "2010-05-08", **values}).encode()


@contextmanager
def object_store(work_dir: Path) -> Iterator[ObjectStore]:
    """A new one, without buckets."""
    log_file = work_dir / "s3.log"
    command = [str(s3_python()), "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    process = ManagedProcess("S3", command, log_file=log_file)
    try:
        yield ObjectStore(process.wait_for_line(_READY, _TIMEOUT_S)[1], log_file)
    finally:
        process.kill()
