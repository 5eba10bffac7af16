"""Logs and primary-key tables on real files, without a server."""
