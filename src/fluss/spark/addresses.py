"""Options with which Spark's processes reach the server that a program is connected to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss.model.addresses import FILE_SCHEME, directory_of
from fluss.model.errors import InvalidRequestError

if TYPE_CHECKING:
    from fluss.api.connect import FlussConnectionBase


def check_directory(address: str) -> None:
    """Raise for a data directory that is not on this machine, where a server would be started on an empty one."""
    if not address.strip().startswith(FILE_SCHEME):
        return
    directory = directory_of(address.strip())
    if not directory.is_dir() or next(directory.iterdir(), None) is None:
        raise InvalidRequestError(
            f"There is no data directory {directory} on this machine. Tasks on other machines than the driver's need "
            "the address of a running server, host:port, as bootstrap.servers."
        )


def options(connection: FlussConnectionBase) -> dict[str, str]:
    """The options for the server of a connection, whatever its address; passwords are among them.

    Those of a server in memory, whose name means nothing to other processes, are good as long as it runs.
    """
    config, address = connection.config, connection.config.bootstrap_servers.strip()
    if address.startswith(FILE_SCHEME):
        # By its path: a port is gone when the server has left after its last connection.
        servers = directory_of(address).as_uri()
    else:
        config = connection.reachable_config()
        servers = config.bootstrap_servers
    return {**{key: str(value) for key, value in config.to_dict().items()}, "bootstrap.servers": servers}
