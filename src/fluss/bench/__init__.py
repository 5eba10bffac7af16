"""Workloads that are timed against any server, through the public API alone; `fluss bench` runs them."""
