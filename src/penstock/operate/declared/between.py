"""What is wrong between streams: subjects that two of them have, copies in a circle, limits of the account that they
exceed together. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from penstock.clients.nats import subjects as subject
from penstock.operate.declared import live, values
from penstock.operate.declared.configs import canonical
from penstock.operate.declared.fields import STREAM_FIELDS
from penstock.operate.declared.model import Config, Live


class Taken:
    """Subjects and the streams that have them, found by what they match: thousands are not compared in pairs."""

    def __init__(self) -> None:
        self._root: dict[str, Any] = {}

    def add(self, name: str, texts: Iterable[str]) -> None:
        """Note the subjects of a stream."""
        for text in texts:
            node = self._root
            for token in text.split("."):
                node = node.setdefault(token, {})
            node.setdefault("", []).append((name, text))

    def matching(self, text: str) -> Iterator[tuple[str, str]]:
        """The streams with a subject that matches some subject that `text` matches, and that subject."""
        yield from _matching(self._root, text.split("."))


def _matching(node: dict[str, Any], tokens: Sequence[str]) -> Iterator[tuple[str, str]]:
    if not tokens:
        yield from node.get("", ())
        return
    if tokens[0] == ">":
        for token, child in node.items():
            if token:
                yield from _all(child)
        return
    if ">" in node:
        yield from node[">"].get("", ())
    for token in [key for key in node if key not in ("", ">")] if tokens[0] == "*" else (tokens[0], "*"):
        if token in node:
            yield from _matching(node[token], tokens[1:])


def _all(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield from node.get("", ())
    for token, child in node.items():
        if token:
            yield from _all(child)


def taken(name: str, config: Config) -> list[str]:
    """The subjects that a stream stores."""
    if config.get("subjects") or config.get("mirror") or config.get("sources"):
        return list(config.get("subjects") or [])
    return [name]


def cycle(streams: Mapping[str, Config], start: str) -> tuple[str, str] | None:
    """Two streams of which one copies the other, that are on the way from `start` already; None where there are none.

    As the server looks for cycles: it also refuses a stream that is reached in two ways.
    """
    visited: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop(0)
        config = streams[name]
        visited.add(name)
        for source in config.get("sources") or []:
            origin = str(source.get("name", ""))
            if source.get("external"):
                continue
            if origin in visited:
                text = source.get("filter_subject")
                if not text or any(subject.intersect(text, own) for own in taken(name, config)):
                    return name, origin
            elif origin in streams:
                waiting.append(origin)
        mirror = config.get("mirror") or {}
        if mirror and not mirror.get("external"):
            if mirror.get("name") in visited:
                return name, str(mirror["name"])
            if mirror.get("name") in streams:
                waiting.append(str(mirror["name"]))
    return None


def origins(config: Config) -> Iterable[str]:
    """The streams of the same account that it copies."""
    each: Any
    for each in [config.get("mirror"), *(config.get("sources") or [])]:
        if each and not each.get("external"):
            yield str(each.get("name", ""))


def origins_fit(config: Config, streams: Mapping[str, Config], declared: Config) -> Iterator[str]:
    """What does not go together with the streams that are copied; `declared`: the fields that a file says."""
    c = canonical(STREAM_FIELDS, config)
    for name in origins(config):
        origin = canonical(STREAM_FIELDS, streams[name]) if name in streams else None
        if origin is None:
            continue
        if 0 < c["max_msg_size"] < origin["max_msg_size"]:
            yield f"'max_msg_size' is smaller than that of '{name}', which it copies."
        if c["mirror"] and "mirror_direct" in declared and c["mirror_direct"] != origin["allow_direct"]:
            words = "true" if origin["allow_direct"] else "false"
            yield f"'mirror_direct' follows 'allow_direct' of '{name}', which is {words}: leave it out, or change both."


def promised(config: Config, *, by_tier: bool) -> tuple[tuple[int, str], int]:
    """What a stream takes of an account: the bytes, and what they are counted of. With `by_tier` the account has limits
    for streams with as many replicas, which count the bytes once; otherwise all replicas count.
    """
    c = canonical(STREAM_FIELDS, config)
    most, replicas = max(0, c["max_bytes"]), c["num_replicas"]
    return ((replicas, c["storage"]), most) if by_tier else ((0, c["storage"]), most * replicas)


class Account:
    """The limits of an account, and what is left of them while a plan goes on."""

    def __init__(self, state: Live):
        self._state = state
        self._more: dict[tuple[int, str], int] = {}  # bytes that the plan adds, by what `promised` tells
        self._streams = len(state.streams)

    def without(self, config: Config) -> None:
        """A stream is deleted."""
        self._streams -= 1
        self._add(config, -1)

    def _add(self, config: Config, sign: int) -> None:
        what, count = self._promised(config)
        self._more[what] = self._more.get(what, 0) + sign * count

    def _promised(self, config: Config) -> tuple[tuple[int, str], int]:
        return promised(config, by_tier=bool(self._state.account.get("tiers")))

    def with_(self, config: Config, before: Config | None) -> Iterator[str]:
        """A stream is created or changed: what that exceeds."""
        c = canonical(STREAM_FIELDS, config)
        allowed = live.limits(self._state.account, c["num_replicas"])
        kind = "memory" if c["storage"] == "memory" else "storage"
        per_stream, most = int(allowed.get(f"{kind}_max_stream_bytes", -1)), int(allowed.get(f"max_{kind}", -1))
        streams = int(allowed.get("max_streams", -1))
        self._streams += before is None
        if before is None and 0 < streams < self._streams:
            yield f"the account has at most {streams} streams."
        if allowed.get("max_bytes_required") and c["max_bytes"] < 0:
            yield "the account demands a 'max_bytes' of every stream."
        if per_stream > 0 and c["max_bytes"] > per_stream:
            yield f"'max_bytes' is {_bytes(c['max_bytes'])}, but the account allows {_bytes(per_stream)} for a stream."
        what, _ = self._promised(config)
        already = self._more.get(what, 0)
        self._add(config, 1)
        if before is not None:
            self._add(before, -1)
        more = self._more[what] - already
        taken = live.reserved(self._state.account, c["num_replicas"], c["storage"]) + already
        if most >= 0 and more > 0 and taken + more > most:
            yield (
                f"the account has {_bytes(most)} of {kind}, of which {_bytes(taken)} are promised to streams: "
                f"{_bytes(more)} more for this stream are too much."
            )


def _bytes(count: int) -> str:
    return f"{values.size(count)}" if isinstance(values.size(count), str) else f"{count:,} bytes"
