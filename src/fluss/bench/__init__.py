"""Workloads that are timed against any server, through the public API alone; `fluss bench` runs them.

`bench` names the workloads and runs and times them; `workloads` are they, and `data` makes and checks their rows.
"""
