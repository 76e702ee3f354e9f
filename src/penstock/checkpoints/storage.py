"""A folder on a disk or in a store of objects, by the location that Spark is given. Knows pyarrow's file systems; knows
nothing of what is in the files.
"""

import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from penstock.errors import ConnectError, OptionError

# Most of the time of many small files is waiting for the store.
THREADS = 16


@dataclass(frozen=True)
class Folder:
    """A folder, which need not be there. Names are relative to it, with slashes. `location` is what messages show: the
    one that a user wrote, without what may be secret.
    """

    location: str
    store: Any
    path: str

    def exists(self) -> bool:
        """Whether it is there, as a folder."""
        with self._reached():
            return bool(self.store.get_file_info(self.path).type == fs.FileType.Directory)

    def names(self) -> list[str]:
        """What is in it: files and folders, sorted. Nothing where it is not there."""
        with self._reached():
            found = self.store.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in found)

    def folders(self) -> list[str]:
        """The folders in it, sorted. Nothing where it is not there."""
        with self._reached():
            found = self.store.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def within(self, name: str) -> "Folder":
        """A folder in it."""
        return self.beside(f"/{name}")

    def changed(self, name: str) -> datetime | None:
        """When a file was last written, by the clock of the store; None where it is not there, or that is not told."""
        with self._reached():
            moment: datetime | None = self.store.get_file_info(f"{self.path}/{name}").mtime
        return moment

    def files(self, under: str = "") -> dict[str, int]:
        """The size of every file below it, at any depth, by its name."""
        path = f"{self.path}/{under}" if under else self.path
        with self._reached():
            found = self.store.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
        start = len(self.path) + 1
        return {info.path[start:]: info.size for info in found if info.is_file}

    def read(self, name: str) -> bytes | None:
        """The content of a file; None where it is not there."""
        with self._reached():
            try:
                with self.store.open_input_stream(f"{self.path}/{name}") as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file, in the place of one that is there. On a local disk nobody sees it half written; stores of
        objects have no half objects.
        """
        path = f"{self.path}/{name}"
        with self._reached():
            self._make_place(path)
            if self.store.type_name != "local":
                self._put(path, content)
                return
            folder, _, file = path.rpartition("/")
            draft = f"{folder}/.{file}.{uuid.uuid4().hex}.tmp"
            self._put(draft, content)
            self.store.move(draft, path)

    def _make_place(self, path: str) -> None:
        if self.store.type_name == "local":  # all others make folders by themselves, or have none
            self.store.create_dir(path.rpartition("/")[0], recursive=True)

    def _put(self, path: str, content: bytes) -> None:
        with self.store.open_output_stream(path) as stream:
            stream.write(content)

    def remove(self, name: str) -> None:
        """Remove a file. One that is not there is no error."""
        with self._reached(), suppress(FileNotFoundError):
            self.store.delete_file(f"{self.path}/{name}")

    def copy(self, to: "Folder", names: list[str]) -> None:
        """Copy files under the same names. A ConnectError where one has not arrived with the size that it had."""
        sizes = self.files()

        def one(name: str) -> None:
            source, target = f"{self.path}/{name}", f"{to.path}/{name}"
            to._make_place(target)
            if self.store.equals(to.store):
                self.store.copy_file(source, target)
                return
            with self.store.open_input_stream(source) as stream, to.store.open_output_stream(target) as out:
                while piece := stream.read(1 << 20):
                    out.write(piece)

        with self._reached(), ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(one, names))
        arrived = to.files()
        if lacking := [name for name in names if arrived.get(name) != sizes.get(name)]:
            raise ConnectError(f"the copy '{to.location}' of '{self.location}' is not whole: {lacking[0]} differs.")

    def beside(self, suffix: str) -> "Folder":
        """The folder whose name is that of this one and the suffix."""
        return Folder(self.location + suffix, self.store, self.path + suffix)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConnectError(f"'{self.location}' cannot be used: {_first_line(error)}") from None


def folder(location: str) -> Folder:
    """The folder at a location as Spark takes it: a path, file:, hdfs://, s3:// (or s3a://) or gs://.

    A store of objects gets its credentials as pyarrow does: from the environment, or from the location's query.
    """
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", location)
    if not location.strip("/"):
        raise OptionError(f"'{location}' is no folder for a checkpoint. Name one.")
    if scheme is None or scheme[1] == "file":
        # As Hadoop reads it: %20 is no space, and file:/x is /x.
        shown = location.rstrip("/")
        return Folder(shown, fs.LocalFileSystem(), str(Path(re.sub(r"^file:(//[^/]*)?", "", shown)).absolute()))
    shown = re.sub(r"://[^/@]*@", "://", location.partition("?")[0]).rstrip("/")
    try:
        store, path = fs.FileSystem.from_uri(re.sub(r"^s3a:", "s3:", location))
    except pa.ArrowInvalid:
        known = "a path, or a location that begins with file:, hdfs:, s3:, s3a: or gs:"
        raise OptionError(f"the location '{shown}' is of no kind that can be read. Name {known}.") from None
    except OSError as error:
        raise ConnectError(f"'{shown}' cannot be reached: {_first_line(error)}") from None
    if not path.strip("/"):
        raise OptionError(f"'{location}' is no folder for a checkpoint. Name one.")
    return Folder(shown, store, path.rstrip("/"))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
