"""The next item of an iterator, made while something else is waited for. Knows nothing of what the items are."""

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """An iterator that can be told to make its next item now.

    What goes wrong while an item is made is raised when that item is asked for, so that the one before it is finished
    first.
    """

    def __init__(self, items: Iterator[T]):
        self._items = items
        self._ready: list[T | Exception] = []

    def prepare(self) -> None:
        """Make the next item, unless it is there."""
        if self._ready:
            return
        try:
            self._ready.append(next(self._items))
        except Exception as error:  # also the end: whoever asks for the item gets it
            self._ready.append(error)

    def __iter__(self) -> "Ahead[T]":
        return self

    def __next__(self) -> T:
        self.prepare()
        item = self._ready.pop()
        if isinstance(item, Exception):
            raise item
        return item
