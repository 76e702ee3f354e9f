"""Kinesis Data Streams, over boto3."""
