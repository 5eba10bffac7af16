"""Checks of `fluss doctor`: of the installation, of a connection, of a data directory."""
