"""The cluster as a client knows it: settings, connections, metadata, leaders, coordinator; and trying again."""
