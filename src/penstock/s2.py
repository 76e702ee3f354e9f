"""The short name of `penstock.tables.latest`."""

from penstock.tables.latest import current, materialize

__all__ = ["current", "materialize"]
