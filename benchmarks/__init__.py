"""The four corners measured side by side: our client and pyfluss, on our server and on Apache Fluss."""
