"""Logging in with SASL PLAIN: user and password in one message, right after the handshake."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from fluss.client.cluster.retry import Tries, repeat
from fluss.model.addresses import Address
from fluss.model.config import Config
from fluss.model.errors import AuthenticationError, ErrorCode, FlussError, InvalidRequestError, TimeoutError
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api, Req, Resp


class Handshaken(Protocol):
    """A connection that can be logged in on."""

    @property
    def address(self) -> Address: ...
    async def request(self, api: Api[Req, Resp], message: Req, timeout_s: float) -> Resp: ...


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client logs in with. The password is not part of its text."""

    username: str
    password: str = field(repr=False)
    mechanism: str = "PLAIN"

    @classmethod
    def of(cls, config: Config) -> Credentials | None:
        """The credentials of a configuration; None when it does not ask for a login."""
        if config.security_protocol.lower() != "sasl":
            return None
        for option in (Config.security_sasl_username, Config.security_sasl_password):
            value = getattr(config, option.name)
            if not value or "\0" in value:
                raise InvalidRequestError(
                    f"security.protocol=sasl needs {option.key}, and no zero character in it.",
                    ErrorCode.INVALID_CONFIG_EXCEPTION,
                )
        return cls(config.security_sasl_username, config.security_sasl_password, config.security_sasl_mechanism)

    def token(self) -> bytes:
        """The one message of PLAIN; the empty part before the first zero byte means "act as this user"."""
        return b"\0" + self.username.encode() + b"\0" + self.password.encode()


async def log_in(connection: Handshaken, credentials: Credentials, timeout_s: float) -> None:
    """Log in, again and again while the server says that it can't check just now."""
    request = pb.AuthenticateRequest(protocol=credentials.mechanism, token=credentials.token())
    answer: FlussError | None = None

    async def attempt(tries: Tries) -> None:
        nonlocal answer
        try:
            # A real server answers with an empty challenge: PLAIN has nothing to say to it, the login is done.
            await connection.request(api_keys.AUTHENTICATE, request, tries.wait_s)
        except FlussError as error:
            # The last attempt may have had no time for an answer: what the server said before is the better reason.
            answer = answer if answer is not None and isinstance(error, TimeoutError) else error
            raise

    try:
        await repeat(Tries(timeout_s, _can_not_check), attempt)
    except FlussError as error:
        raise _refused(connection, credentials, answer or error) from error


def _can_not_check(error: FlussError) -> bool:
    return error.error_code == ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION


def _refused(connection: Handshaken, credentials: Credentials, error: FlussError) -> FlussError:
    if _can_not_check(error):
        return AuthenticationError(
            f"The server at {connection.address} can't check the login of user {credentials.username!r} just now: "
            f"{error.message.rstrip('.')}. Try again later.",
            error.error_code,
        )
    if error.error_code not in (ErrorCode.AUTHENTICATE_EXCEPTION, ErrorCode.UNSUPPORTED_VERSION):
        return error
    return AuthenticationError(
        f"The server at {connection.address} refused the login of user {credentials.username!r}: "
        f"{error.message.rstrip('.')}. Check security.sasl.username and security.sasl.password; "
        "security.protocol=PLAINTEXT is for a server without logins.",
        ErrorCode.AUTHENTICATE_EXCEPTION,
    )


def login_missing(address: object) -> AuthenticationError:
    """The server wants a login and none was configured."""
    return AuthenticationError(
        f"The server at {address} wants a login: set security.protocol=sasl, security.sasl.username and "
        "security.sasl.password.",
        ErrorCode.AUTHENTICATE_EXCEPTION,
    )
