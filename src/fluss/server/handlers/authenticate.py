"""Authenticate: SASL PLAIN.

A client of Apache Fluss's Rust library answers the empty challenge of a successful login with a second, empty
Authenticate; so on a connection that is logged in the request has an empty answer.
"""

from __future__ import annotations

from fluss.model.errors import AuthenticationError, ErrorCode
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.context import ConnectionContext
from fluss.server.net.logins import MECHANISM, parse_plain


async def authenticate(context: ConnectionContext, request: pb.AuthenticateRequest) -> pb.AuthenticateResponse:
    logins = context.server.logins
    if logins is None:
        raise _refused("This server has no users, so one can't log in; connect without SASL")
    if request.protocol.upper() != MECHANISM:
        raise _refused(f"This server knows the mechanism {MECHANISM} only; set security.sasl.mechanism to it")
    if context.user is None:
        user, password = parse_plain(request.token)
        try:
            await logins.check(user, password, context)
        except AuthenticationError:
            context.server.metrics.logins_refused += 1
            raise
        context.user = user
        return pb.AuthenticateResponse(challenge=b"")
    return pb.AuthenticateResponse()


def login_missing(api_name: str) -> AuthenticationError:
    """The error for a client that asks what only logged-in ones may."""
    return _refused(f"{api_name} needs a login; set security.protocol to sasl, with user name and password")


def _refused(text: str) -> AuthenticationError:
    return AuthenticationError(f"{text}.", ErrorCode.AUTHENTICATE_EXCEPTION)
