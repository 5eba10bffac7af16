"""Batch reads: what is asked, planning, partitions, the lake's part."""
