"""Iggy's SDK behind calls that wait, and polled bytes as columns."""
