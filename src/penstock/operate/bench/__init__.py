"""Benchmarks of JetStream: what is varied, who makes the load, what is measured, and how it is told. No Spark."""
