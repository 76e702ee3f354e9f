"""Notices where the rows that Spark hands to a writer were cut off. Knows Spark's Python worker; no server.

When a query is stopped, or what feeds a task fails, Spark closes the worker's socket. Arrow takes that for the end of
the rows, so a sink would finish a part as if it were the whole. A complete input is followed by one more word of
Spark's protocol, and that word is either there at the end of the rows, or the socket has ended.
"""

import logging
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from penstock.errors import Interrupted

log = logging.getLogger("penstock")


def whole(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches. An Interrupted where they were cut off. Must be called by the task's own thread."""
    return _checked(batches, _socket())


def _checked(batches: Iterator[pa.RecordBatch], socket: Any) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
        cut = socket is not None and not socket.peek(1)
    except (pa.ArrowInvalid, OSError, EOFError):  # cut inside a message, or before the first
        cut = True
    if cut:
        raise Interrupted("Spark ended this task before all of its rows came: it was stopped, or what feeds it failed.")


def _socket() -> Any:
    """The file that this worker reads from: an argument of `main` on the stack. None in an unknown worker."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and {"infile", "outfile"} <= frame.f_locals.keys():
            return frame.f_locals["infile"]
        frame = frame.f_back  # type: ignore[assignment]  # None at the end
    log.warning("this Spark runs tasks in another way than known: an input that is cut off is taken for a whole one")
    return None
