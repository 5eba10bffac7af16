"""Writing, in the order of the way: writer, row buffer, encode queue, sender, bucket queue.

`writer` and `upsert` say what rows become, `routing` where they go; what whoever wrote them hears is in `row_buffer`.
`staged` goes past the sender: it asks the server and waits.
"""
