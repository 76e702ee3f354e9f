"""One log: a folder with the files `epoch`, `first` (a number) and `rows`. Knows files; knows no Spark.

A line of `rows` is a row: microseconds, the name by which its writer knows it again, and the value, with tabs between
them. What would end a line or a field is quoted as in a URL. A line without an end was never finished, and is no row.
"""

import fcntl
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from penstock.errors import OptionError, ProtocolError

# What stays as it is in a value: text should be readable in an editor.
_PLAIN = "".join(map(chr, range(32, 127))).replace("%", "")


class Row(NamedTuple):
    """A row of a log."""

    time: int
    name: str
    value: bytes


class Log:
    """A log in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def make(self) -> None:
        """Make it, unless it is there. Of several who try at once, one makes it."""
        if (self.folder / "epoch").exists():
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "rows").touch()
            _write_new(self.folder / "first", "0")
            _write_new(self.folder / "epoch", uuid.uuid4().hex)  # last: now it is there
        except (FileExistsError, NotADirectoryError):
            raise OptionError(f"'{self.folder}' cannot be a log: there is a file in its place.") from None

    @property
    def epoch(self) -> str:
        """A name that changes when the log is deleted and made again."""
        return (self.folder / "epoch").read_text()

    @property
    def first(self) -> int:
        """The number of the first row that is kept."""
        try:
            return int((self.folder / "first").read_text())
        except (ValueError, OSError) as error:
            raise self._damaged(f"its file 'first' has no number: {error}") from None

    def rows(self) -> list[Row]:
        """All rows, by their numbers; those before `first` are gone for readers."""
        *lines, _ = self._content().split(b"\n")
        parts = (line.split(b"\t") for line in lines)
        try:
            return [Row(int(moment), name.decode(), unquote_to_bytes(value)) for moment, name, value in parts]
        except ValueError as error:
            raise self._damaged(f"its file 'rows' has a line that is not a row: {error}") from None

    def count(self) -> int:
        """How many rows there were ever."""
        return self._content().count(b"\n")

    def _content(self) -> bytes:
        try:
            return (self.folder / "rows").read_bytes()
        except FileNotFoundError:
            raise self._damaged("it has no file 'rows'") from None

    def _damaged(self, why: str) -> ProtocolError:
        return ProtocolError(f"the log '{self.folder}' is damaged: {why}. Put the file right, or delete the log.")

    @contextmanager
    def locked(self) -> Iterator[BinaryIO]:
        """The file of rows, for one writer at a time, at its end. What an earlier one left unfinished is cut off."""
        with (self.folder / "rows").open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(file.read().rfind(b"\n") + 1)
            file.truncate()
            yield file
            file.flush()
            os.fsync(file.fileno())


def _write_new(file: Path, text: str) -> None:
    """Write a file that is not there; nobody sees it half written."""
    draft = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
    draft.write_text(text)
    try:
        os.link(draft, file)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def lines(rows: Iterable[tuple[str, bytes]], moment: int | None = None) -> bytes:
    """Rows, each with its name and value, as they stand in the file."""
    now = time.time_ns() // 1000 if moment is None else moment
    return b"".join(
        b"%d\t%s\t%s\n" % (now, name.encode(), quote_from_bytes(value, _PLAIN).encode()) for name, value in rows
    )
