"""Arrow: messages and their payload, layouts, arrays, casts, and columns taken out without decoding."""
