"""Looks at streams and consumers on a server. Knows which questions to ask, and how many at most; figures.py knows what
the answers mean.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.clients.answers import field, objects, texts
from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.errors import Disconnected, PenstockError
from penstock.operate.asking import ask, one
from penstock.operate.figures import ConsumerFigures, Look, StreamFigures, oldest, worst_consumers

# Consumers of so many streams are asked for at most, those with the most messages: each stream is a question.
MOST_STREAMS = 200
# So many consumers at most have the age of their oldest message asked for.
MOST_AGES = 50
# A consumer with more filters than this is not asked for its oldest message: each filter is a question.
MOST_FILTERS = 4


class Looker:
    """Looks at one server, again and again. It remembers what it may not ask. `names`: only these streams."""

    def __init__(self, calls: Calls, names: Sequence[str] = (), *, ages: bool = True):
        self.calls, self.names, self.ages = calls, tuple(names), ages

    def look(self) -> Look:
        """All streams and consumers now. A Disconnected where the server is away."""
        calls = self.calls
        told = calls.connection.info
        server = {
            "id": told.get("server_id", ""),
            "name": told.get("server_name", ""),
            "version": told.get("version", ""),
            "cluster": told.get("cluster", ""),
            "domain": told.get("domain", ""),
            "account": told.get("remote_account", ""),
        }
        problems: list[str] = []
        account = one(calls, "INFO")
        if isinstance(account, PenstockError):
            problems.append(f"the account tells nothing of itself: {account}")
        look = self._streams(problems)
        at = time.monotonic()
        largest = sorted(
            (each for each in look.streams if each.consumers), key=lambda each: (-each.messages, each.name)
        )
        consumers = self._consumers([each.name for each in largest[:MOST_STREAMS]], problems)
        look = replace(
            look,
            at=at,
            server=server,
            account=None if isinstance(account, PenstockError) else account,
            consumers=tuple(consumers),
            unasked=max(0, len(largest) - MOST_STREAMS),
            problems=tuple(problems),
        )
        return self._with_ages(look) if self.ages else look

    def _streams(self, problems: list[str]) -> Look:
        """A look with streams alone."""
        if self.names:
            return self._named(problems)
        found: dict[str, StreamFigures] = {}
        missing: dict[str, None] = {}
        while True:
            before = len(found)
            answer = one(self.calls, "STREAM.LIST", {"offset": before})
            if isinstance(answer, PenstockError):
                problems.append(f"streams cannot be listed: {answer} Name those to look at: --stream NAME.")
                break
            found |= {each.name: each for each in map(StreamFigures.of, objects(answer, "streams"))}
            missing |= dict.fromkeys([*texts(answer, "missing"), *field(answer, "offline", dict, {})])
            if len(found) == before or len(found) + len(missing) >= field(answer, "total", int, 0):
                break
        return Look(0, streams=tuple(found.values()), missing=tuple(name for name in missing if name not in found))

    def _named(self, problems: list[str]) -> Look:
        found: list[StreamFigures] = []
        missing: list[str] = []
        absent: list[str] = []
        hidden: list[str] = []
        for name, answer in zip(
            self.names, ask(self.calls, [(f"STREAM.INFO.{n}", None) for n in self.names]), strict=True
        ):
            if isinstance(answer, ApiError) and answer.code == api.NO_STREAM:
                absent.append(str(self.calls.missing(name)))
            elif isinstance(answer, PenstockError):
                (missing if isinstance(answer, Disconnected) else hidden).append(name)
                problems.append(f"stream '{name}' tells nothing: {answer}")
            else:
                found.append(StreamFigures.of(answer))
        return Look(0, streams=tuple(found), missing=tuple(missing), absent=tuple(absent), hidden=tuple(hidden))

    def _consumers(self, names: Sequence[str], problems: list[str]) -> list[ConsumerFigures]:
        found: dict[tuple[str, str], ConsumerFigures] = {}
        todo = dict.fromkeys(names, 0)  # how many consumers of each are known
        refused: dict[str, list[str]] = {}
        while todo:
            asked = ask(self.calls, [(f"CONSUMER.LIST.{name}", {"offset": have}) for name, have in todo.items()])
            again: dict[str, int] = {}
            for (name, have), answer in zip(todo.items(), asked, strict=True):
                if isinstance(answer, PenstockError):
                    if not (isinstance(answer, ApiError) and answer.code == api.NO_STREAM):  # deleted meanwhile
                        refused.setdefault(str(answer).replace(f".{name}", ".*"), []).append(name)
                    continue
                page = [ConsumerFigures.of(each) for each in objects(answer, "consumers")]
                found |= {(name, each.name): each for each in page}
                if page and have + len(page) < field(answer, "total", int, 0):
                    again[name] = have + len(page)
            todo = again
        for why, which in refused.items():
            more = f" and {len(which) - 3} others" if len(which) > 3 else ""
            problems.append(f"consumers of {', '.join(which[:3])}{more} cannot be listed: {why}")
        return list(found.values())

    def _with_ages(self, look: Look) -> Look:
        """The look with the age of what consumers have not given, where the account may read messages."""
        late = [
            each
            for each in worst_consumers(look)
            if (each.pending or each.ack_pending) and len(each.filters) <= MOST_FILTERS
        ]
        asked = [(each, question) for each in late[:MOST_AGES] for question in oldest(each)]
        if not asked:
            return look
        ages: dict[tuple[str, str], float] = {}
        for (each, _), answer in zip(asked, ask(self.calls, [question for _, question in asked]), strict=True):
            if isinstance(answer, ApiError):
                continue  # there is no such message, or no such stream any more
            if isinstance(answer, PenstockError):
                self.ages = False
                return look
            then = _time(answer)
            now = _time(dict(each.raw), "ts")
            if then is not None and now is not None:
                key = (each.stream, each.name)
                ages[key] = max(ages.get(key, 0.0), (now - then) / 1e6)
        consumers = tuple(replace(each, lag_seconds=ages.get((each.stream, each.name))) for each in look.consumers)
        return replace(look, consumers=consumers)


def _time(answer: dict[str, Any], name: str = "") -> int | None:
    text = field(answer if name else field(answer, "message", dict), name or "time", str, "")
    return api.micros(text) if text else None
