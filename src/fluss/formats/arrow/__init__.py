"""Arrow: messages and their payload, layouts, arrays, casts, and columns taken out without decoding.

`payload` is what a log batch has, `messages` its metadata and layout; `cast` is for writers.
"""
