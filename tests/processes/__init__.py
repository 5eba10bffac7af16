"""What needs processes of its own: starting and stopping, installing, type-checking, and runs of the benchmark."""
