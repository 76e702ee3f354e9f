"""Columns: pieces of buffers, JSON and SQL's names for types. Knows Arrow; knows no server and no Spark."""
