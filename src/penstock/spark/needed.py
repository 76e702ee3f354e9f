"""Imported before pyspark by what is nothing without it: where there is none, this says what to install."""

from penstock.spark.installed import require_spark

require_spark()
