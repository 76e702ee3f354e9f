"""Many questions to JetStream at once, each with an answer or with what is wrong with it: a question that an account
may not ask spoils no other one. Knows permissions; not what is asked.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats.client import Connection, Denied
from penstock.clients.nats.wire import Frame
from penstock.errors import Disconnected, PenstockError

Answer = dict[str, Any] | PenstockError
Question = tuple[str, Mapping[str, Any] | bytes | None]
# So many questions are on their way at the same time: a server has a limit for those that wait.
AT_ONCE = 32


def ask(calls: Calls, questions: Sequence[Question]) -> list[Answer]:
    """The answer to each question, a call of the API and its body, in their order. What was refused is the error.
    A Disconnected where the connection is lost; where only an answer is missing, it is the error of these questions.
    """
    found: list[Answer] = []
    for low in range(0, len(questions), AT_ONCE):
        part = questions[low : low + AT_ONCE]
        try:
            replies = calls.connection.requests([_request(calls, *each) for each in part])
        except Denied:
            # The server names one subject, and which of the other answers came cannot be told.
            settle(calls.connection)
            found += [one(calls, *each) for each in part]
            continue
        except Disconnected as error:
            if not calls.connection.alive():
                raise
            found += [error for _ in part]
            continue
        found += [_answer(calls, reply) for reply in replies]
    return found


def one(calls: Calls, action: str, body: Mapping[str, Any] | bytes | None = None) -> Answer:
    """The answer to one question, or the error. A Disconnected where the connection is lost."""
    try:
        reply = calls.connection.request(*_request(calls, action, body))
    except Denied as error:
        settle(calls.connection)
        return error
    except Disconnected as error:
        if not calls.connection.alive():
            raise
        return error
    return _answer(calls, reply)


def settle(connection: Connection) -> None:
    """Wait until the server has told all that it refuses of what was sent."""
    while True:
        try:
            connection.flush()
        except Denied:
            continue
        return


def _request(calls: Calls, action: str, body: Mapping[str, Any] | bytes | None = None) -> tuple[str, bytes]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
    return f"{calls.prefix}.{action}", content


def _answer(calls: Calls, reply: Frame) -> Answer:
    try:
        return calls.answer(reply)
    except PenstockError as error:
        return error
