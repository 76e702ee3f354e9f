"""A server that starts anew knows only the ids of what it still holds: where messages are gone, nobody can tell what
was written, and a task must stop rather than write rows twice. Where nothing is gone, it goes on.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from jetstream_sources import until
from sink_writes import ORIGIN, Stopped, batch, batches, bodies, count, dies_after, stored, write

from nats_servers import Admin, server, server_binary
from penstock.clients.jetstream import publish
from penstock.clients.nats.client import Connection
from penstock.connectors.jetstream.targets import Targets
from penstock.errors import OptionError
from penstock.testing.nats_server import NatsServer
from penstock.testing.proxy import Proxy

ROWS = 10
# How messages of a stream go: consumed, replaced by newer ones of their subject, or removed by a command.
KINDS: dict[str, dict[str, Any]] = {
    "work queue": {"retention": "workqueue"},
    "last value": {"max_msgs_per_subject": 1},
    "KV": {"max_msgs_per_subject": 5, "allow_rollup_hdrs": True, "discard": "new", "deny_delete": True},
}
all_kinds = pytest.mark.parametrize("kind", KINDS)
REFUSED = r"stream 'S' before, .* cannot be told any more: .*and its server has started anew, or another one leads it"


class Running:
    """A server of the test's own with a stream S, of which rows can be taken away."""

    def __init__(self, running: NatsServer, kind: str, **config: Any):
        self.server, self.kind, self.url = running, kind, running.url
        with closing(Admin(self.url)) as admin:
            admin.create("S", **KINDS.get(kind, {}), **config)

    def use(self) -> None:
        """What others do: consume the rows, or write newer ones."""
        with closing(Admin(self.url)) as admin:
            if self.kind == "work queue":
                admin.purge("S")
            elif self.kind == "last value":
                admin.publish((f"S.{i}", b"newer") for i in range(ROWS))
            else:
                admin.publish((f"S.{i}", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}) for i in range(ROWS))

    def restart(self) -> None:
        self.server.kill()
        self.server.start()

    def stored(self) -> list[tuple[str, bytes]]:
        with closing(Admin(self.url)) as admin:
            return [(subject, body) for subject, body, _ in stored(admin, "S")]

    def last(self) -> int:
        with closing(Admin(self.url)) as admin:
            return admin.calls.stream("S").last


@contextmanager
def running(folder: Path, kind: str, executable: str | None = None, **config: Any) -> Iterator[Running]:
    with NatsServer(folder, executable=executable) as started:
        yield Running(started, kind, **config)


def keyed(values: list[bytes] | None = None) -> list[pa.RecordBatch]:
    """Two batches of five rows, each with a subject of its own."""
    given = values or [b"old-%d" % i for i in range(ROWS)]
    subjects = [f"S.{i}" for i in range(ROWS)]
    return [batch(given[low : low + 5], subject=pa.array(subjects[low : low + 5])) for low in (0, 5)]


@contextmanager
def when_sent(monkeypatch: pytest.MonkeyPatch, rows: int, what: Callable[[], None]) -> Iterator[None]:
    """Do something when that many rows of a chunk are under way, and none of the acks that are still to come does."""
    receive, frames, sent, done = Connection.receive, publish._frames, [0], [False]

    def counting(chunk: Any, prefix: bytes, low: int, high: int) -> Any:
        sent[0] = high
        return frames(chunk, prefix, low, high)

    def hooked(self: Connection, sid: int, **options: Any) -> Any:
        if not done[0] and options.get("kind") == "reply" and sent[0] == rows:
            done[0] = True
            what()
            self.close()
        return receive(self, sid, **options)

    with monkeypatch.context() as patch:
        patch.setattr(publish, "_frames", counting)
        patch.setattr(Connection, "receive", hooked)
        yield
    assert done[0], "nothing was tried"


@all_kinds
def test_a_later_attempt_stops_where_messages_are_gone_and_the_server_has_started_anew(folder: Path, kind: str) -> None:
    with running(folder, kind) as here:
        with pytest.raises(Stopped):
            write(here.url, dies_after(keyed(), 1))
        here.use()
        here.restart()
        before = here.stored()
        for _ in range(2):
            with pytest.raises(OptionError, match=REFUSED):
                write(here.url, keyed())
        assert here.stored() == before


@all_kinds
def test_a_later_attempt_goes_on_where_messages_are_gone_and_the_server_still_knows_them(
    folder: Path, kind: str
) -> None:
    with running(folder, kind) as here:
        with pytest.raises(Stopped):
            write(here.url, dies_after(keyed(), 1))
        here.use()
        before = here.last()
        receipt = write(here.url, keyed())
        assert (receipt.rows, receipt.known) == (ROWS, 5)
        assert here.last() == before + 5, "five rows are new"


@all_kinds
def test_a_later_attempt_goes_on_where_the_server_has_started_anew_and_nothing_is_gone(folder: Path, kind: str) -> None:
    with running(folder, kind) as here:
        with pytest.raises(Stopped):
            write(here.url, dies_after(keyed(), 1))
        here.restart()
        receipt = write(here.url, keyed())
        assert (receipt.rows, receipt.known) == (ROWS, 5)
        assert here.stored() == [(f"S.{i}", b"old-%d" % i) for i in range(ROWS)]


@all_kinds
@pytest.mark.parametrize("gone", [True, False])
def test_an_attempt_whose_rows_are_under_way_when_the_server_starts_anew(
    folder: Path, kind: str, gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were stored, no ack has come, and perhaps somebody has used them already."""
    with running(folder, kind) as here:

        def restart() -> None:
            until(lambda: here.last() == 5)
            if gone:
                here.use()
            here.restart()

        with when_sent(monkeypatch, 5, restart):
            if gone:
                with pytest.raises(OptionError, match=REFUSED):
                    write(here.url, keyed())
            else:
                assert write(here.url, keyed()).rows == ROWS
        if not gone:
            assert here.stored() == [(f"S.{i}", b"old-%d" % i) for i in range(ROWS)]
        elif kind == "last value":
            assert {body for _, body in here.stored()} == {b"newer"}, "no key goes back to an older value"


@all_kinds
def test_rows_that_were_acked_and_used_do_not_stop_an_attempt(folder: Path, kind: str) -> None:
    """Only the rows whose acks did not come are in doubt, and they lie behind those whose acks did."""
    with running(folder, kind) as here:

        def rows() -> Iterator[pa.RecordBatch]:
            yield keyed()[0]
            here.use()
            before.append(here.last())
            here.restart()
            yield keyed()[1]

        before: list[int] = []
        assert write(here.url, rows()).rows == ROWS
        assert here.last() == before[0] + 5


@pytest.mark.parametrize("gone", [1000, 1001])
def test_only_what_lies_behind_the_last_ack_is_in_doubt(
    folder: Path, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first thousand rows have acks, the second are stored and have none, when the server starts anew."""
    with running(folder, "work queue") as here:

        def restart() -> None:
            until(lambda: here.last() == 2000)
            with closing(Admin(here.url)) as admin:
                admin.purge("S", seq=gone + 1)
            here.restart()

        once = [batch(count(0, 3000))]
        with when_sent(monkeypatch, 2000, restart):
            if gone == 1000:
                assert write(here.url, once, subject="S.x", maxInFlight="1000").rows == 3000
            else:
                with pytest.raises(OptionError, match=REFUSED):
                    write(here.url, once, subject="S.x", maxInFlight="1000")
        assert [body for _, body in here.stored()] == count(gone, 3000 if gone == 1000 else 2000)


@pytest.mark.parametrize("version", ["2.10.26", "2.15.1"])
@pytest.mark.parametrize("later", [True, False], ids=["a later attempt", "the same attempt"])
def test_a_stream_that_keeps_its_messages_is_written_on(
    folder: Path, version: str, later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(folder, "limits", server_binary(version)) as here:
        if later:
            with pytest.raises(Stopped):
                write(here.url, dies_after(batches(3000), 2), subject="S.x")
            here.restart()
            write(here.url, batches(3000), subject="S.x")
        else:
            with when_sent(monkeypatch, 1000, here.restart):
                write(here.url, batches(3000), subject="S.x")
        assert [body for _, body in here.stored()] == count(0, 3000)


def test_an_old_server_tells_that_it_has_started_anew_as_well(folder: Path) -> None:
    with running(folder, "last value", server_binary("2.10.26")) as here:
        with pytest.raises(Stopped):
            write(here.url, dies_after(keyed(), 1))
        here.use()
        assert write(here.url, keyed(), ORIGIN._replace(partition=2)).rows == ROWS
        here.restart()
        with pytest.raises(OptionError, match=REFUSED):
            write(here.url, keyed())


def test_where_nobody_can_tell_whether_a_server_started_anew_it_counts_as_if_it_had(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Targets, "_life", lambda *_: "")
    with running(folder, "last value") as here:
        with pytest.raises(Stopped):
            write(here.url, dies_after(keyed(), 1))
        assert write(here.url, keyed()).known == 5, "nothing is gone"
        here.use()
        with pytest.raises(OptionError, match=REFUSED):
            write(here.url, keyed())


def test_without_the_life_of_the_server_keys_would_go_back_to_older_values(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that these tests prove something."""
    monkeypatch.setattr(Targets, "_life", lambda *_: "always the same")
    with running(folder, "last value") as here:
        with pytest.raises(Stopped):
            write(here.url, dies_after(keyed(), 1))
        here.use()
        here.restart()
        write(here.url, keyed())
        assert [body for _, body in here.stored()][:5] != [b"newer"] * 5


def test_a_window_that_is_shorter_than_a_look_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(folder) as (started, admin), Proxy(started.port, delay=0.04) as proxy:
        admin.create("S", duplicate_window=100_000_000)
        words = r"stream 'S' forgets ids after 0\.1s .* 10 times: .*nats stream edit S --dupe-window=2m"
        with pytest.raises(Stopped):
            write(started.url, dies_after(batches(3000), 2), subject="S.x")
        with pytest.raises(OptionError, match=words):
            write(proxy.url, batches(3000), subject="S.x")
        assert bodies(admin, "S") == count(0, 2000)
