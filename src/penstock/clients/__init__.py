"""Clients of the servers, one folder per protocol. They know no Spark and no planning, and work without them."""
