"""Writing, in the order of the way: writer, row buffer, encode queue, leader finder, bucket queue, sender.

`append` and `upsert` say what rows become, `routing` where they go, `outcome` is what whoever wrote them hears.
`staged` goes past the sender: it asks the server and waits.
"""
