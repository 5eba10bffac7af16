"""Real-time tables for Python."""
