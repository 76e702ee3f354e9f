"""Streaming queries seen from outside: which there are, and how far each is behind. Starts no Spark."""
