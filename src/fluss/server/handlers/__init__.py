"""What answers a request: a module for each group of requests, entered in the table of `fluss.server.dispatch`."""
