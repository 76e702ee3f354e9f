"""The files of a checkpoint, by their names: to which batch each belongs, and which state can be loaded. Pure: opens no
file.

Batch N reads version N of the state and writes version N+1, in `state/<operator>/<partition>/`, or one folder deeper
for joins. The name of a file begins with its version. Whole states end in `.snapshot` or, with RocksDB, in `.zip`; what
has changed since the version before, in `.delta` or `.changelog`.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

# A checksum of Hadoop's local file system has a dot in front of the name of its file, one of Spark's state has none. On
# a disk, the second has one of the first: .3.zip.crc.crc.
_OF_A_BATCH = re.compile(
    r"(?P<folder>commits|offsets|state/\d+/_metadata/v2)/\.?(?P<number>\d+)(?P<checksum>(\.crc)+)?"
)
_OF_A_VERSION = re.compile(
    r"(?P<store>state/\d+/.+)/\.?(?P<number>\d+)(_[0-9a-f-]+)?"
    r"\.((?P<whole>snapshot|zip)|delta|changelog)(?P<checksum>(\.crc)+)?"
)


class Piece(NamedTuple):
    """A file of a batch. The rank is 0 in commits, 1 in the state, 2 in offsets."""

    batch: int
    rank: int
    is_checksum: bool
    name: str


def pieces(names: Iterable[str], *, above: int) -> list[Piece]:
    """The files of all batches above one, in the order in which they can be removed: the last batch first, and of each
    batch its commit, then its state, then its offsets. That is the reverse of what Spark does to run a batch.

    So the checkpoint is at every moment one that Spark itself could have left: the last batch is planned and not
    committed, or was never planned. Other orders are worse. Without commits 3 and 4, and with offsets 4, Spark runs
    batch 4 and leaves a gap in its log. With commit 4 and without offsets 4, it runs batch 3 again, then fails.

    A checksum goes before its file: Spark reads a file without one, and fails to write a file where one is left over.

    State must go too. Spark loads the newest whole state up to the version that it needs, be it one that was left over
    from a batch that is no more. Then counts are wrong, and nothing says so.
    """
    found = [piece for name in names if (piece := _piece(name)) is not None and piece.batch > above]
    return sorted(found, key=lambda piece: (-piece.batch, piece.rank, -piece.name.count(".crc"), piece.name))


def _piece(name: str) -> Piece | None:
    if found := _OF_A_BATCH.fullmatch(name):
        rank = {"commits": 0, "offsets": 2}.get(found["folder"], 1)
        return Piece(int(found["number"]), rank, found["checksum"] is not None, name)
    if found := _OF_A_VERSION.fullmatch(name):
        return Piece(int(found["number"]) - 1, 1, found["checksum"] is not None, name)
    return None


def stores_without(names: Iterable[str], batch: int) -> list[str]:
    """The folders of state that cannot be loaded as they were behind a batch."""
    whole: dict[str, set[int]] = {}
    changed: dict[str, set[int]] = {}
    for found in filter(None, map(_OF_A_VERSION.fullmatch, names)):
        if found["checksum"] is None:
            versions = whole if found["whole"] else changed
            versions.setdefault(found["store"], set()).add(int(found["number"]))
    stores = sorted(whole.keys() | changed.keys())
    return [s for s in stores if not _can_load(batch + 1, whole.get(s, set()), changed.get(s, set()))]


def _can_load(version: int, whole: set[int], changed: set[int]) -> bool:
    """Whether there is a whole state, or that of version 0, which is empty, and every change since."""
    while version > 0 and version not in whole:
        if version not in changed:
            return False
        version -= 1
    return True
