"""Checkpoints of Spark's streaming queries: read, set back, and held by one run. Needs no Spark."""
