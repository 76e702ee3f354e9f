"""What streaming queries tell of themselves, kept for whoever asks. Knows Spark's progress events; no pipelines, no
HTTP, no metrics.
"""
