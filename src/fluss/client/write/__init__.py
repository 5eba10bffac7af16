"""Writing, in the order of the way: writer, row buffer, encode queue, sender, bucket queue.

`writer` and `upsert` say what rows become, `routing` where they go; `row_buffer` has what their writer hears of them.
`staged` goes past the sender: it asks the server and waits.
"""
