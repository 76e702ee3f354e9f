"""Folders of Spark's event logs, of applications that have ended and of those that run. Knows files and how they are
compressed; what is in them is known to `events.py`.

An application has a folder eventlog_v2_ID with events_1_ID, events_2_ID and so on, or one file. While it runs, a name
ends with .inprogress. So does that of an application that was killed.
"""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.checkpoints import storage
from penstock.errors import ConnectError, OptionError
from penstock.jobs.events import Events
from penstock.jobs.rows import Job

# Of one application, uncompressed. More takes minutes.
MOST = 4 << 30
_PIECE = 1 << 20
_ROLLED = re.compile(r"eventlog_v2_[^/]+/events_(\d+)_[^/]+?(\.\w+)?(\.compact)?")
_SINGLE = re.compile(r"(?:app|local|application|spark)-?[\w-]*?(\.\w+)??(\.inprogress)?")
_CODECS = {None: None, ".zstd": "zstd", ".lz4": "", ".lzf": "", ".snappy": ""}


@dataclass
class EventLogs:
    """The event logs in a folder. Files that have not grown are not read again."""

    location: str
    _read: dict[str, tuple[int, Events]] = field(default_factory=dict)

    def jobs(self) -> tuple[list[Job], list[str]]:
        """The queries of all applications; and what could not be read, in sentences."""
        folder = storage.folder(self.location)
        files = folder.files()
        if not files and not folder.exists():
            raise OptionError(
                f"there is no folder '{folder.location}' with event logs. It is what spark.eventLog.dir names."
            )
        found: list[Job] = []
        problems: list[str] = []
        for application, names in _applications(files).items():
            running = any(name.startswith(application) and name.endswith(".inprogress") for name in files)
            events: Events | None = None
            for file in names:
                try:
                    events = self._events(folder, file, files[file], events)
                except (OSError, ConnectError) as error:
                    problems.append(f"the event log '{folder.location}/{file}' cannot be read: {error}")
                    continue
                if events.wrong > 1:  # the last line may be half written
                    problems.append(f"the event log '{folder.location}/{file}' has {events.wrong} damaged lines.")
            found += events.jobs(running=running) if events is not None else []
        return found, problems

    def _events(self, folder: storage.Folder, name: str, size: int, before: Events | None) -> Events:
        known = self._read.get(name)
        if known is not None and known[0] == size:
            return known[1]
        events = Events(folder.location, before).take(_lines(folder, name))
        self._read[name] = (size, events)
        return events


def _applications(files: dict[str, int]) -> dict[str, list[str]]:
    """The files of each application, in their order. What is no event log is passed over."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name in files:
        if match := _ROLLED.fullmatch(name):
            found.setdefault(name.partition("/")[0] + "/", []).append((int(match[1]), name))
        elif "/" not in name and not name.startswith(".") and _SINGLE.fullmatch(name):
            found.setdefault(name, []).append((0, name))
    return {application: [name for _, name in sorted(names)] for application, names in sorted(found.items())}


def _lines(folder: storage.Folder, name: str) -> Iterator[str]:
    """The lines of a file. What is not written to its end ends where it does."""
    suffix = re.search(r"\.(zstd|lz4|lzf|snappy)(?=\.|$)", name)
    codec = _CODECS[suffix[0] if suffix else None]
    if codec == "":
        raise OSError(
            f"it is compressed as {suffix[1] if suffix else ''}, and only zstd, which is Spark's default, and plain "
            "text can be read."
        )
    with folder.store.open_input_stream(f"{folder.path}/{name}", compression=codec) as stream:
        yield from io.TextIOWrapper(io.BufferedReader(_Pieces(stream), _PIECE), "utf-8", "replace")


class _Pieces(io.RawIOBase):
    """A stream of pyarrow that ends where it was cut off, as that of an application that writes it is."""

    def __init__(self, stream: pa.NativeFile):
        self._stream, self._left = stream, MOST

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """The next bytes; none at the end."""
        if self._left <= 0:
            raise OSError(f"it has more than {MOST >> 30} GB.")
        try:
            piece = self._stream.read(min(len(buffer), 1 << 16))
        except OSError as error:
            if "runcated" in str(error):
                return 0
            raise
        buffer[: len(piece)] = piece
        self._left -= len(piece)
        return len(piece)
