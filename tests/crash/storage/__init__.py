"""The storage alone, in processes that are killed at each of its fail points."""
