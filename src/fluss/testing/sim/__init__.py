"""A client, its server and its disk from one seed; and what judges the runs.

Judging needs nothing but the standard library: `history` has what clients did and were told, `models` what a key may
hold, `linearizability` whether its calls fit into one order, `oracles` all other promises.
"""
