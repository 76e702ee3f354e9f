"""What streaming queries do, for people and programs outside: figures, metrics, HTTP, a page. Knows Spark's progress
events and pipelines; no server, but through them.
"""
