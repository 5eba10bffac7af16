"""Writing, in the order of the way: writer, row buffer, encode queue, leader finder, bucket queue, sender."""
