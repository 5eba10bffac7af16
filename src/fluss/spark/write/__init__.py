"""Writes, batch and stream: options, plan, tasks, partitions."""
