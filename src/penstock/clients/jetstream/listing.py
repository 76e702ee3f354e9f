"""All streams of an account, with their sizes. Knows STREAM.LIST; reads no messages."""

from typing import Any, NamedTuple

from penstock.clients.answers import field, objects
from penstock.clients.jetstream.api import StreamInfo
from penstock.clients.jetstream.calls import Calls


class Listed(NamedTuple):
    """A stream in the list."""

    name: str
    subjects: tuple[str, ...]
    messages: int
    size: int
    first: int
    last: int
    last_time: int | None  # microseconds; None where it never had a message
    consumers: int


def page(answer: dict[str, Any]) -> tuple[list[Listed], int]:
    """The streams of one answer to STREAM.LIST, and how many there are in all."""
    streams = [_listed(each) for each in objects(answer, "streams")]
    return streams, field(answer, "total", int, 0)


def _listed(item: dict[str, Any]) -> Listed:
    info, state = StreamInfo.of(item), field(item, "state", dict)
    last_time = info.last_time if info.last else None
    consumers = field(state, "consumer_count", int, 0)
    return Listed(info.name, info.subjects, info.messages, info.size, info.first, info.last, last_time, consumers)


def listing(calls: Calls) -> list[Listed]:
    """All streams, by name. Ends when a page brings nothing new, as streams may be made and deleted meanwhile."""
    found: dict[str, Listed] = {}
    while True:
        before = len(found)
        streams, total = page(calls.call("STREAM.LIST", {"offset": before}))
        found |= {each.name: each for each in streams}
        if len(found) == before or len(found) >= total:
            return [found[name] for name in sorted(found)]
