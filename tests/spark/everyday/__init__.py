"""Programs as PySpark's users write them every day, with Fluss tables where others have files or topics.

A module has programs about one subject. A program is a function that takes the session and `Tables`, does what it is
called, and ends with an assertion on all rows. `test_everyday.py` runs them; with SPARK_REMOTE set, on Spark Connect.
"""
