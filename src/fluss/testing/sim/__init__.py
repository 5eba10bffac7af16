"""Clients, their server, the network and disks in one process, all of it from one seed; and what judges the runs.

Read in this order: `scheduler` has simulated time and threads, `waiting` what threads and loops wait on, `network`,
`disk` and `losses` what breaks, `stores` the rows of key tables, `world` the machines and processes made of them. `runs`
lets a nemesis break things while the clients of `workload` use their `tables`. `history` has what clients did and were
told, `models` what a key may hold, `linearizability` whether its calls fit into one order, `logs` and `oracles` all other
promises; judging needs nothing but the standard library. docs/simulation.md says what is simulated.
"""
