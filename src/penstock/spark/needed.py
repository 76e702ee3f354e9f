"""Import this before pyspark. Without a usable Spark it raises an error that says what to install."""

from penstock.spark.installed import require_spark

require_spark()
