"""Loads: clients that know what they wrote, and read it back while servers die."""
