"""Workloads that are timed against any server, through the public API alone; `fluss bench` runs them.

`catalog` names the workloads, `reads`, `writes` and `latencies` are they, `data` makes their rows; `bench` runs and
`meter` times them.
"""
