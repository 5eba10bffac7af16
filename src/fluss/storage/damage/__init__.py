"""Damage on disk: found by scrubbing and by surveys, reported, repaired.

The server's way is `scrub` and `scrub_files`. Without a server, `survey` finds by `checks` what `repair` puts in order;
`log_dump` only shows.
"""
