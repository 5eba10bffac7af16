"""Damage on disk: found by scrubbing and by surveys, reported, repaired."""
