"""S2's API: HTTP, frames of records, its calls, and batches on their way."""
