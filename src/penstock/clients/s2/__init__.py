"""S2's API: HTTP, frames, records, calls and append sessions."""
