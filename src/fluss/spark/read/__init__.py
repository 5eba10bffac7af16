"""Batch reads, in the order of the way: options, reader, plan, parts of a log, the lake's part."""
