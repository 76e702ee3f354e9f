"""What the texts of the SDK's errors are taken for. The texts are those of apache-iggy 0.9.0."""

from typing import Any

import pytest

from penstock.clients.iggy import faults
from penstock.connectors.iggy import Iggy
from penstock.errors import ConnectError, Disconnected, OptionError, PenstockError

REACH = {"stream": "s", "topic": "t", "password": "s3cret"}


def of_call(said: str) -> PenstockError:
    return faults.of_call(RuntimeError(said), Iggy.parse(REACH))


def of_connecting(error: Exception, why: str | None = None, **more: str) -> PenstockError:
    return faults.of_connecting(error, Iggy.parse({**REACH, **more}), lambda: why)


@pytest.mark.parametrize(
    "said",
    [
        "Disconnected", "Cannot establish connection", "Not connected", "Stale client", "TCP error", "Unauthenticated",
        "Connection closed", "Client shutdown", "Empty response", "IO error: ", "Shard communication error",
        "Task execution timeout", "Request transiently not committed; retry",
        "Request transiently not accepted; retry, on any replica",
        "Request already applied; its reply is no longer available",
        "VSR session value 0 is invalid (must be non-zero)",
    ],
)  # fmt: skip
def test_what_another_try_may_mend_is_tried_again(said: str) -> None:
    error = of_call(said)
    assert isinstance(error, Disconnected)
    assert "127.0.0.1:8090" in str(error)


@pytest.mark.parametrize(
    "said",
    [
        "Invalid connection string", "Cannot close WebSocket connection", "WebSocket connection error",
        "Invalid message payload length", "Too big message payload", "Invalid command", "Feature is unavailable",
        "Cannot append message", "Unsupported option key: x", "Error",
    ],
)  # fmt: skip
def test_what_no_other_try_mends_is_refused(said: str) -> None:
    error = of_call(said)
    assert type(error) is ConnectError
    assert str(error) == f"Iggy at 127.0.0.1:8090 refuses: {said}."


def test_what_is_not_there_and_what_is_not_allowed_are_told_apart() -> None:
    for said in (
        "Stream with ID: 0 was not found.",
        "Topic with name:  for stream with ID:  was not found.",
        "Partition with ID: 0 for topic with ID: 0 for stream with ID: 0 was not found.",
    ):
        assert isinstance(of_call(said), faults.NotFound)
    assert str(of_call("Unauthorized")) == (
        "Iggy at 127.0.0.1:8090 does not allow user 'iggy' to do that: Unauthorized. Grant it."
    )
    other = of_call("Incompatible binary protocol version: client 0.11.0, server accepts [0.12.0, 0.12.0]")
    assert isinstance(other, faults.OtherVersion)
    assert "this build talks to 0.9" in str(other)
    assert "did not answer in 30s (requestTimeout)" in str(faults.of_call(TimeoutError(), Iggy.parse(REACH)))


@pytest.mark.parametrize(
    ("error", "why", "more", "kind", "said"),
    [
        (
            RuntimeError("Cannot establish connection"), "Connection refused", {}, Disconnected,
            "no Iggy server answers at 127.0.0.1:8090 (Connection refused). Check 'address' and that the server runs.",
        ),
        (
            TimeoutError(), "no answer in time", {}, Disconnected,
            "no Iggy server answers at 127.0.0.1:8090 (no answer in time). Check 'address' and that the server runs.",
        ),
        (
            RuntimeError("Disconnected"), None, {}, Disconnected,
            "something listens at 127.0.0.1:8090, but closes the connection when Iggy's login is sent. Check that "
            "'address' is the TCP port of Iggy 0.9, 8090 by default, and whether it wants TLS (tls=true).",
        ),
        (
            TimeoutError(), None, {"tls": "true"}, Disconnected,
            "something listens at 127.0.0.1:8090, but does not answer in 5s (connectTimeout) when Iggy's login is "
            "sent. Check that 'address' is the TCP port of Iggy 0.9, 8090 by default, and whether it has TLS, as the "
            "options ask for.",
        ),
        (
            RuntimeError("Invalid credentials"), None, {}, ConnectError,
            "Iggy at 127.0.0.1:8090 refused the credentials of 'iggy': Invalid credentials. Check 'username' and "
            "'password'.",
        ),
        (
            RuntimeError("Invalid personal access token"), None, {"token": "pat"}, ConnectError,
            "Iggy at 127.0.0.1:8090 refused the token: Invalid personal access token. Check 'token'.",
        ),
        (
            RuntimeError("Invalid TLS certificate path"), None, {"tlsCa": "/no"}, ConnectError,
            "TLS with Iggy at 127.0.0.1:8090 failed: Invalid TLS certificate path. Check 'tlsCa' and 'tlsDomain'.",
        ),
        (
            RuntimeError("Invalid configuration"), None, {}, ConnectError,
            "Iggy at 127.0.0.1:8090 refuses: Invalid configuration.",
        ),
    ],
)  # fmt: skip
def test_a_connection_that_does_not_come_about_is_said_in_a_sentence(
    error: Exception, why: str | None, more: dict[str, str], kind: type[Exception], said: str
) -> None:
    found = of_connecting(error, why, **more)
    assert type(found) is kind
    assert str(found) == said


# One name for one thing


@pytest.mark.parametrize("given", [{"topic": "t"}, {"topics": "t"}, {"topic": "t", "topics": "t"}])
def test_topic_and_topics_are_read_and_written_alike(given: dict[str, str]) -> None:
    reach = {"stream": "s", "password": "x", **given}
    assert Iggy.parse(reach).names() == ("t",)
    assert Iggy.parse_sink(reach).target == "t"


def test_of_several_topics_one_may_be_written_to() -> None:
    reach = {"stream": "s", "password": "x", "topics": "t,u", "topic": "u"}
    assert Iggy.parse(reach).names() == ("t", "u")
    assert Iggy.parse_sink(reach).target == "u"


@pytest.mark.parametrize(
    ("given", "reading", "writing"),
    [
        ({}, "set 'topic' or 'topics': which topics are to be read", "set 'topic': rows are written to one"),
        ({"topics": "a,b"}, None, "set 'topic': rows are written to one, and 'topics' names 2"),
        ({"topic": "c", "topics": "a,b"}, "'topic' is 'c', and 'topics' is 'a,b'", "'topic' is 'c', and 'topics'"),
        ({"topic": "123"}, "'123' is all digits", "'123' is all digits"),
        ({"topic": "a", "password": ""}, "no password is given for user 'iggy'", "no password is given for user"),
    ],
)
def test_names_that_do_not_fit_are_refused(given: dict[str, Any], reading: str | None, writing: str) -> None:
    reach = {"stream": "s", "password": "x", **given}
    if reading is not None:
        with pytest.raises(OptionError, match=reading):
            Iggy.parse(reach)
    with pytest.raises(OptionError, match=writing):
        Iggy.parse_sink(reach)
