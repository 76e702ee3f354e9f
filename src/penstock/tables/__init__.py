"""Keyed changes to a table, and its latest state."""
