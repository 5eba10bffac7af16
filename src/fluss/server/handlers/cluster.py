"""DescribeClusterConfigs: the settings this server runs with."""

from __future__ import annotations

from typing import Final

from fluss.protocol import messages_pb2 as pb
from fluss.server.config import effective_settings
from fluss.server.net.context import ConnectionContext

# Apache Fluss's name for what was set at the start.
_SOURCE: Final = "INITIAL_SERVER_CONFIG"


def describe_cluster_configs(
    context: ConnectionContext, _: pb.DescribeClusterConfigsRequest
) -> pb.DescribeClusterConfigsResponse:
    response = pb.DescribeClusterConfigsResponse()
    for key, value in effective_settings(context.server.config):
        response.configs.add(config_key=key, config_value=value, config_source=_SOURCE)
    return response
