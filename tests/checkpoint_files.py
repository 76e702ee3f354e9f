"""Checkpoints as Spark leaves them on a disk, made by hand: for tests that have no Spark."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "checkpoints"
BEGAN = 1_794_800_000_000  # the first batch was planned then, and one each minute since
MINUTE = 60_000


def ours(next: int, **more: Any) -> str:
    """Where a source of ours ends, in a stream ORDERS."""
    return json.dumps({"epochs": {"ORDERS": "e"}, "next": {"ORDERS": next}, **more, "version": 1})


def read(next: int) -> str:
    """The same, of a batch that reads something."""
    return ours(next, marks={"ORDERS": f"m{next}"}, perTask=100)


def put(folder: Path, name: str, text: str) -> None:
    """A file, and beside it the checksum that Hadoop's local file system writes."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    (file.parent / f".{file.name}.crc").write_bytes(b"crc\0of " + text.encode()[-20:])


def batch(
    folder: Path, number: int, offsets: Sequence[str] | Mapping[str, str], *, committed: bool = True, version: int = 1
) -> None:
    """A batch that was planned, and perhaps committed."""
    planning = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": BEGAN + MINUTE * number, "conf": {}})
    lines = [f"{name}:{text}" for name, text in offsets.items()] if isinstance(offsets, Mapping) else list(offsets)
    put(folder, f"offsets/{number}", "\n".join([f"v{version}", planning, *lines]))
    if committed:
        put(folder, f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')


def checkpoint(folder: Path, ends: Sequence[int] = (1, 11, 21, 31), *, first: int = 0, committed: bool = True) -> Path:
    """A query of ours, by where its batches end. `committed`: whether the last one is."""
    put(folder, "metadata", '{"id":"4949678e-5a8b-467a-a0e9-ba0697f6c0f2"}')
    for number, end in enumerate(ends, first):
        is_last = number == first + len(ends) - 1
        batch(folder, number, [ours(end) if number == 0 else read(end)], committed=committed or not is_last)
    return folder


def state(folder: Path, names: Sequence[str], store: str = "state/0/0") -> None:
    """Files of a store of state."""
    for name in names:
        put(folder, f"{store}/{name}", name)
    put(folder, "state/0/_metadata/metadata", "v1")


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its name."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}
