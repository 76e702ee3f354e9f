"""Pipelines declared in TOML: sources, transforms and sinks as streaming queries."""
