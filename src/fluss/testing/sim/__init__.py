"""A simulation of clients, a server, a network and disks in one process, all of it from one seed.

Read in this order: `scheduler` has simulated time and threads, `waiting` what threads and loops wait
on, `network` and `disk` what breaks, `stores` the rows of key tables, `world` the machines and processes made of them,
`workload` what clients do and what must be true of it, `runs` many seeds. docs/simulation.md says what is simulated.
"""
