"""Arrow: messages and their payload, layouts, slices, arrays and casts."""
