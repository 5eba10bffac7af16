"""Arrow: messages and their payload, layouts, arrays, casts, and columns taken out without decoding.

`payload` is what a log batch has, `messages` its metadata, `layout` its buffers. `arrays` makes arrays of buffers,
`cast` is for writers, `raw_rows` for readers of few rows.
"""
