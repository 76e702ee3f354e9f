"""Iggy 0.9: blocking calls over its SDK, and polled messages as columns. Knows no rows and no Spark."""
