"""Tables in the lake: history in Apache Iceberg, written by tiering and read together with the fresh rows."""
