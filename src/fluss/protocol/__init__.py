"""The wire: frames, api keys and messages. Nothing here opens a socket."""
