"""The adapter between Spark's Python data sources and our contract: the only user of pyspark."""
