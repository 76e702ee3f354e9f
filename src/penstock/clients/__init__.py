"""What speaks to a server, one folder a protocol. Knows no Spark and no planning, and can be used without both."""
