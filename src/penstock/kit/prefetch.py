"""The next item of an iterator, made early, while something else is waited for. Knows nothing of the items."""

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """An iterator that makes its next item early with `prepare`.

    An error while an item is made is raised when that item is asked for, so that the one before it is finished first.
    """

    def __init__(self, items: Iterator[T]):
        self._items = items
        self._ready: list[T | Exception] = []

    def prepare(self) -> None:
        """Make the next item, unless it is made."""
        if self._ready:
            return
        try:
            self._ready.append(next(self._items))
        except Exception as error:  # StopIteration too: `__next__` raises it
            self._ready.append(error)

    def __iter__(self) -> "Prefetch[T]":
        return self

    def __next__(self) -> T:
        self.prepare()
        item = self._ready.pop()
        if isinstance(item, Exception):
            raise item
        return item
