"""Looks at streams and consumers on a server. Knows which questions to ask, and how many at most; figures.py knows what
the answers mean.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.clients.answers import field, objects, texts
from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.clients.nats.client import Denied
from penstock.errors import Disconnected, PenstockError
from penstock.operate.asking import Answer, Question, ask
from penstock.operate.figures import ConsumerFigures, Look, StreamFigures, oldest, worst_consumers

# Consumers of so many streams are asked for at most, those with the most messages: each stream is a question.
MOST_STREAMS = 200
# So many consumers at most have the age of their oldest message asked for.
MOST_AGES = 50
# A consumer with more filters than this is not asked for its oldest message: each filter is a question.
MOST_FILTERS = 4
# Seconds for which a question that was refused is not asked again: a server writes each refusal into its log.
AGAIN = 600.0


class Refusals:
    """The questions that a user may not ask, each with the error and the moment until which it is believed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Denied, float]] = {}

    def ask(self, calls: Calls, questions: Sequence[Question]) -> list[Answer]:
        """The answer to each question, as `ask` has it. What was refused a short time ago is not sent."""
        now = time.monotonic()
        self._known = {action: each for action, each in self._known.items() if now < each[1]}
        known = {action: self._known[action][0] for action, _ in questions if action in self._known}
        answers = iter(ask(calls, [each for each in questions if each[0] not in known]))
        found: list[Answer] = [known[action] if action in known else next(answers) for action, _ in questions]
        for (action, _), answer in zip(questions, found, strict=True):
            # A connection also tells refusals of other subjects, such as that of its inbox.
            if action not in known and isinstance(answer, Denied) and f'"{calls.prefix}.{action}"' in str(answer):
                self._known[action] = answer, now + AGAIN
        return found


class Looker:
    """Looks at one server, again and again. It remembers what it may not ask; `refusals` are of an earlier one.
    `names`: only these streams.
    """

    def __init__(self, calls: Calls, names: Sequence[str] = (), *, ages: bool = True, refusals: Refusals | None = None):
        self.calls, self.names, self.ages = calls, tuple(names), ages
        self.refusals = refusals or Refusals()
        self._no_ages_until = float("-inf")

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
        account = self._one("INFO")
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
        return self._with_ages(look) if self.ages and time.monotonic() >= self._no_ages_until else look

    def _one(self, action: str, body: Mapping[str, Any] | None = None) -> Answer:
        return self.refusals.ask(self.calls, [(action, body)])[0]

    def _streams(self, problems: list[str]) -> Look:
        """A look with streams alone."""
        if self.names:
            return self._named(problems)
        found: dict[str, StreamFigures] = {}
        missing: dict[str, None] = {}
        is_whole = True
        while True:
            before = len(found)
            answer = self._one("STREAM.LIST", {"offset": before})
            if isinstance(answer, PenstockError):
                problems.append(f"streams cannot be listed: {answer} Name those to look at: --stream NAME.")
                is_whole = False
                break
            found |= {each.name: each for each in map(StreamFigures.of, objects(answer, "streams"))}
            missing |= dict.fromkeys([*texts(answer, "missing"), *field(answer, "offline", dict, {})])
            if len(found) == before or len(found) + len(missing) >= field(answer, "total", int, 0):
                break
        return Look(
            0,
            streams=tuple(found.values()),
            missing=tuple(name for name in missing if name not in found),
            is_whole=is_whole,
        )

    def _named(self, problems: list[str]) -> Look:
        found: list[StreamFigures] = []
        missing: list[str] = []
        absent: list[str] = []
        hidden: list[str] = []
        for name, answer in zip(
            self.names,
            self.refusals.ask(self.calls, [(f"STREAM.INFO.{n}", None) for n in self.names]),
            strict=True,
        ):
            if isinstance(answer, ApiError) and answer.code == api.NO_STREAM:
                absent.append(str(self.calls.missing(name)))
            elif isinstance(answer, PenstockError):
                (missing if isinstance(answer, Disconnected) else hidden).append(name)
                problems.append(f"stream '{name}' tells nothing: {answer}")
            else:
                found.append(StreamFigures.of(answer))
        return Look(
            0,
            streams=tuple(found),
            missing=tuple(missing),
            absent=tuple(absent),
            hidden=tuple(hidden),
            is_whole=False,
        )

    def _consumers(self, names: Sequence[str], problems: list[str]) -> list[ConsumerFigures]:
        found: dict[tuple[str, str], ConsumerFigures] = {}
        todo = dict.fromkeys(names, 0)  # how many consumers of each are known
        refused: dict[str, list[str]] = {}
        while todo:
            questions: list[Question] = [(f"CONSUMER.LIST.{name}", {"offset": have}) for name, have in todo.items()]
            asked = self.refusals.ask(self.calls, questions)
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
        answers = self.refusals.ask(self.calls, [question for _, question in asked])
        for (each, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, (ApiError, Denied)):
                continue  # there is no such message, or no such stream any more, or it may not be read
            if isinstance(answer, PenstockError):
                self._no_ages_until = time.monotonic() + AGAIN
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
