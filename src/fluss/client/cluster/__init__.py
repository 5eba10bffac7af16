"""The cluster as a client knows it: metadata, leaders, coordinator; asked again when it has changed."""
