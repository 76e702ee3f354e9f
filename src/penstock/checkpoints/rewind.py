"""A checkpoint set back to an earlier batch, time or position: its query reads again from there. Knows the files of a
checkpoint; what is to be done to them is decided in `plan.py`. Knows no Spark, no server.

There are three ways, each of which can be cut off at any moment:

- **Back to a batch**: the files of later batches are removed, in the order of `files.pieces`. What is left at any
  moment is a checkpoint that Spark goes on from, though perhaps not as far back. A second call finishes it.
- **Back to positions**: one more batch is written, which reads nothing and ends there. Its offsets come first, then its
  commit. In between it is a batch that was planned and not run; a second call removes it and writes it again.
- **A new query**: all batches give way to a batch 0 that ends where the old query is set back to, under a new id. What
  is to be done is first written to a file, `penstock.rewind`. Then `metadata` goes, without which Spark refuses to
  start, and the new one is written last. In between, a second call does what the file says. Folders of sources stay:
  that of files has what was read, and Kafka's only says where batch 0 began, and is not read again.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from penstock.checkpoints import lease, storage
from penstock.checkpoints.entries import Entry, Offset
from penstock.checkpoints.log import INTENT, Log
from penstock.checkpoints.pieces import pieces
from penstock.checkpoints.plan import Plan, SinkMemory, Target, plan
from penstock.errors import OptionError

__all__ = ["Rewound", "SinkMemory", "Target", "rewind"]

UNFINISHED = "penstock.copying"  # in a copy, until it is whole


@dataclass(frozen=True)
class Rewound:
    """What a rewind did. `kept`: the last batch that stays as it was. `copy`: where the checkpoint is as it was before;
    None where there was nothing to do. `next_batch`: what Spark will number the next one.
    """

    kept: int
    removed: tuple[int, ...]
    copy: str | None
    positions: Mapping[str, Offset | None]
    query_id: str
    next_batch: int


def rewind(
    location: str,
    to: Target,
    *,
    source: str | None = None,
    sinks: Sequence[SinkMemory] = (),
    new_query: bool = False,
    copy_to: str | None = None,
    ttl: float = lease.TTL,
) -> Rewound:
    """Set a checkpoint back. Its query must be stopped: a lease is seen, a query that runs without one is not.

    `to`: a batch, which stays, and so do all before it; a time with its zone, and all batches planned before it stay;
    or positions of one `source`, and everything else stays where it stands. `new_query` makes a query of another id,
    whose rows are new to every sink that knows rows by their query. A copy of the checkpoint is made first, beside it
    or at `copy_to`.

    A rewind to where the query stands already does nothing. An OptionError where it is refused, and then nothing was
    changed. A rewind to a new query that was cut off is finished, whatever is asked.
    """
    folder = storage.folder(location)
    if _unfinished(folder) is None:
        plan(Log(location), to, source, sinks, new_query)  # refuse before anything is waited for
    with lease.Lease(location, ttl=ttl) as held:
        if intent := _unfinished(folder):
            return _finish(folder, intent, held)
        planned = plan(Log(location), to, source, sinks, new_query)
        copy = None if planned.is_done else _copy(folder, copy_to)
        if planned.new_query:
            return _finish(folder, _begin(folder, planned, copy), held)
        if copy is not None:
            folder.remove(INTENT)  # of a rewind that never began
        for piece in planned.pieces:
            held.require()
            folder.remove(piece.name)
        last = planned.kept
        if planned.is_moved:
            held.require()
            last += 1
            folder.write(f"offsets/{last}", planned.end.write())
            folder.write(f"commits/{last}", planned.commit)
    return Rewound(planned.kept, planned.removed, copy, planned.end.offsets(), planned.query_id, last + 1)


def _copy(folder: storage.Folder, to: str | None) -> str:
    """Copy the whole checkpoint, and say where. In a copy that was cut off there is a file that says so."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    copy = folder.beside(f".before-rewind-{stamp}") if to is None else storage.folder(to)
    if f"{copy.path}/".startswith(f"{folder.path}/") and copy.store.equals(folder.store):
        raise OptionError(f"the copy cannot be inside of the checkpoint: '{copy.location}'. Name another folder.")
    if copy.names():
        raise OptionError(f"there is something in '{copy.location}', where the copy should go. Name an empty folder.")
    copy.write(UNFINISHED, b"This copy of a checkpoint is not whole.")
    ours = (lease.FILE, f".{lease.FILE}", INTENT)
    folder.copy(copy, [name for name in folder.files() if not name.startswith(ours)])
    copy.remove(UNFINISHED)
    return copy.location


def _begin(folder: storage.Folder, planned: Plan, copy: str | None) -> dict[str, Any]:
    """Write down what a new query begins with.

    Its batch 0 has no rows. Where Spark can run it, it is left to be run: sinks then have a note of it, as of the first
    batch of any query. Files would be read anew from the beginning, so there it is committed.
    """
    kinds = {offset.kind for offset in planned.end.offsets().values() if offset is not None}
    intent = {
        "id": str(uuid.uuid4()),
        "offsets": planned.end.write().decode(),
        "commit": None if kinds <= {"penstock", "kafka"} else planned.commit.decode(),
        "initial": _initial(folder, planned.end) if "kafka" in kinds else {},
        "kept": planned.kept,
        "removed": planned.removed,
        "copy": copy,
    }
    folder.write(INTENT, json.dumps(intent).encode())
    return intent


def _initial(folder: storage.Folder, end: Entry) -> dict[str, str]:
    """Where Spark's Kafka sources began, by their files: where they stand now, so that batch 0 is empty."""
    files = {}
    for source, text in end.lines.items():
        content = folder.read(f"sources/{source}/0")
        if content is not None and b"{" in content:
            files[f"sources/{source}/0"] = content[: content.index(b"{")].decode() + text
    return files


def _unfinished(folder: storage.Folder) -> dict[str, Any] | None:
    """What a rewind to a new query was about to do that has begun, and has not said that it is finished."""
    content = folder.read(INTENT)
    if content is None:
        return None
    metadata = folder.read("metadata")
    try:
        intent: dict[str, Any] = json.loads(content)
        if metadata is None:
            return intent
        finished = json.loads(metadata)["id"] == intent["id"]
    except (ValueError, KeyError, TypeError):
        return None
    # The query of that id may have run since. One whose id is another never began to change.
    return intent if finished and not pieces(folder.files(), above=0) else None


def _finish(folder: storage.Folder, intent: Mapping[str, Any], held: lease.Lease) -> Rewound:
    """Do what was written down, as far as it is not done."""
    for name in (".metadata.crc", "metadata"):
        held.require()
        folder.remove(name)
    files = {"offsets/0": intent["offsets"], "commits/0": intent["commit"], **intent["initial"]}
    for name, text in files.items():
        held.require()
        place, _, last = name.rpartition("/")
        folder.remove(f"{place}/.{last}.crc")
        if text is None:
            folder.remove(name)
        else:
            folder.write(name, text.encode())
    for piece in pieces(folder.files(), above=0):
        held.require()
        folder.remove(piece.name)
    folder.write("metadata", json.dumps({"id": intent["id"]}, separators=(",", ":")).encode())
    folder.remove(INTENT)
    positions = Entry.parse(intent["offsets"].encode()).offsets()
    return Rewound(
        intent["kept"], tuple(intent["removed"]), intent["copy"], positions, intent["id"], 1 if intent["commit"] else 0
    )
