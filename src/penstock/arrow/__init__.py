"""Arrow columns: from byte buffers, as JSON, and their types in SQL. Knows Arrow; no server and no Spark."""
