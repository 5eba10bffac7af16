"""Clients, their server, the network and disks in one process, all of it from one seed; and what judges the runs.

Read in this order: `scheduler` has simulated time and threads, `waiting` what threads and loops wait on, `network`,
`disk` and `losses` what breaks, `stores` the rows of key tables, `world` machines and processes made of them. In `runs`
a nemesis breaks things while the clients of `workload` use their `tables`; `mutants` are bugs to find. `history` has
what clients did and were told, `models` what a key may hold, `linearizability` whether its calls fit into one order,
`logs` and `oracles` all other promises; judging needs the standard library alone. docs/simulation.md says what is
simulated.
"""
