"""Damage: found by scrubbing and by surveys, reported, repaired."""
