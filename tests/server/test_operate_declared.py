"""Declared streams on a real server: planned, applied, planned again to nothing; whatever comes between is noticed."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats as nats_py
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from nats_servers import Admin, server, server_binary
from penstock.cli import app
from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.errors import Disconnected, OptionError, PenstockError
from penstock.operate.declared import live, nack, values, writing
from penstock.operate.declared.apply import Stopped, apply
from penstock.operate.declared.fields import CONSUMER, CONSUMER_FIELDS, STREAM, STREAM_FIELDS, Field
from penstock.operate.declared.files import load
from penstock.operate.declared.model import Declared, DeclaredConsumer, DeclaredStream, Place
from penstock.operate.declared.plan import plan
from penstock.operate.declared.retrying import Asking
from penstock.operate.declared.steps import Action, Plan
from penstock.testing.nats_server import NatsServer
from penstock.testing.proxy import Proxy

VERSIONS = ("2.10.26", "2.11.11", "2.12.8", "2.14.6", "2.15.1")
EXAMPLES = int(os.environ.get("PENSTOCK_DECLARED_EXAMPLES", "30"))
NOWHERE = Place(Path("test.toml"), 1)


class Patient(Admin):
    """Creates a stream also where folders of one that was just deleted are not gone yet."""

    def create(self, stream: str, *subjects: str, **config: Any) -> dict[str, Any]:
        return Asking(self.calls).run("a test", lambda _: super(Patient, self).create(stream, *subjects, **config))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, Admin]]:
    with server(tmp_path_factory.mktemp("declared")) as (started, _):
        admin = Patient(started.url)
        yield started, admin
        admin.close()


@pytest.fixture
def empty(running: tuple[NatsServer, Admin]) -> Iterator[Admin]:
    """The server, without streams before and after."""
    clear(running[1])
    yield running[1]
    clear(running[1])


def clear(admin: Admin) -> None:
    for name in admin.calls.names():
        admin.delete(name)


def begin(admin: Admin) -> None:
    """Only the stream ORIGIN is there, empty. A stream is not made anew each time: its files may not be gone yet."""
    for name in admin.calls.names():
        if name != "ORIGIN":
            admin.delete(name)
    if not admin.calls.streams(["ORIGIN"])["ORIGIN"]:
        admin.create("ORIGIN", "o.>")


def planned(admin: Admin, declared: Declared) -> Plan:
    return plan(declared, live.look(admin.calls, declared.streams))


def file(folder: Path, text: str, name: str = "streams.toml") -> Declared:
    (folder / name).write_text(text)
    return load([folder / name])


def actions(made: Plan) -> dict[str, str]:
    return {step.name: step.action.value for step in made.steps if step.action is not Action.NOTHING}


ORDERS = """
[streams.ORDERS]
subjects = ["orders.>"]
max_age = "7d"
duplicate_window = "10m"
metadata = { env = "prod" }
[streams.ORDERS.consumers.billing]
filter_subjects = ["orders.eu.>", "orders.us.>"]
backoff = ["1s", "10s"]
max_deliver = 5
[streams.ARCHIVE]
mirror = { name = "ORDERS" }
storage = "memory"
[streams.ALL]
subjects = ["other"]
sources = [{ name = "ARCHIVE", filter_subject = "orders.eu.>" }, { name = "LATER" }]
[streams.LATER]
republish = { src = "LATER", dest = "again.LATER" }
[buckets.settings]
history = 5
ttl = "1m"
limit_marker_ttl = "1h"
[buckets.copy]
sources = [{ name = "settings" }]
[buckets.mirror]
mirror = { name = "settings" }
"""


def test_what_was_applied_plans_to_nothing_and_so_does_what_is_imported_then(empty: Admin, tmp_path: Path) -> None:
    declared = file(tmp_path, ORDERS)
    made = planned(empty, declared)
    order = [step.name for step in made.changes]
    assert order.index("ORDERS") < order.index("ARCHIVE") < order.index("ALL") < order.index("ORDERS/billing")
    assert order.index("KV_settings") < order.index("KV_copy")
    result = apply(empty.calls, made)
    assert [step.name for step in result.done] == order
    assert result.remarks == ()
    assert actions(planned(empty, declared)) == {}
    imported = writing.of_live(live.look(empty.calls))
    assert "[buckets.settings]" in imported
    assert 'sources = [{ name = "settings" }]' in imported, "as short as it was written"
    again = file(tmp_path, imported, "imported.toml")
    assert again.streams.keys() == declared.streams.keys()
    assert actions(planned(empty, again)) == {}
    clear(empty)
    apply(empty.calls, planned(empty, again))
    assert actions(planned(empty, declared)) == {}, "what is imported says all"


def test_fields_that_no_file_says_stay_as_they_are(empty: Admin, tmp_path: Path) -> None:
    empty.create("S", "s", max_msgs=50, metadata={"penstock.query": "q", "a": "b"}, description="by hand")
    made = planned(empty, file(tmp_path, '[streams.S]\nmax_age = "1h"\nmetadata = { c = "d" }\n'))
    assert actions(made) == {"S": "update"}
    apply(empty.calls, made)
    config = empty.calls.call("STREAM.INFO.S")["config"]
    assert (config["max_msgs"], config["description"], config["max_age"]) == (50, "by hand", 3_600_000_000_000)
    assert {k: v for k, v in config["metadata"].items() if not k.startswith("_nats")} == {
        "penstock.query": "q",
        "c": "d",
    }


def test_a_bucket_can_be_used_by_the_python_client_and_one_of_its_own_is_imported(
    empty: Admin, running: tuple[NatsServer, Admin], tmp_path: Path
) -> None:
    apply(empty.calls, planned(empty, file(tmp_path, ORDERS)))

    async def use() -> list[Any]:
        client = await nats_py.connect(running[0].url)
        stream = client.jetstream()
        bucket = await stream.key_value("settings")
        await bucket.put("a.b", b"1")
        await bucket.put("a.b", b"2")
        found = [(await bucket.get("a.b")).value, len(await bucket.history("a.b")), (await bucket.status()).history]
        await bucket.delete("a.b")
        await stream.create_key_value(bucket="own", history=3)
        await client.close()
        return found

    assert asyncio.run(use()) == [b"2", 2, 5]
    imported = writing.of_live(live.look(empty.calls, ["KV_own"]), ["KV_own"])
    assert imported == "[buckets.own]\nhistory = 3\nallow_msg_ttl = true\nallow_direct = false\n"
    assert actions(planned(empty, file(tmp_path, imported))) == {}


def test_a_replaced_consumer_needs_permission_by_name(empty: Admin, tmp_path: Path) -> None:
    first = '[streams.S]\nsubjects = ["s"]\n[streams.S.consumers.c]\n'
    apply(empty.calls, planned(empty, file(tmp_path, first)))
    empty.numbers("S", 10, subject="s")
    made = planned(empty, file(tmp_path, first + 'deliver_policy = "new"\n'))
    assert actions(made) == {"S/c": "replace"}
    assert any("never gets the 10 messages" in text for text in made.changes[0].effects)
    with pytest.raises(OptionError, match=r"would delete 'S/c'. To allow that: --allow-replace S/c"):
        apply(empty.calls, made, ["S/d", "c"])
    assert empty.calls.call("CONSUMER.INFO.S.c")["num_pending"] == 10
    apply(empty.calls, made, ["S/c"])
    assert empty.calls.call("CONSUMER.INFO.S.c")["num_pending"] == 0


def test_what_cannot_be_created_after_it_was_deleted_is_there_again_as_it_was(empty: Admin, tmp_path: Path) -> None:
    first = '[streams.S]\nsubjects = ["s"]\n[streams.S.consumers.c]\nmax_batch = 7\n'
    apply(empty.calls, planned(empty, file(tmp_path, first)))
    made = planned(empty, file(tmp_path, first + 'deliver_policy = "new"\nextra = { no_such_field = 1 }\n'))
    with pytest.raises(Stopped, match=r"unknown field .*is there again as it was before, but begins anew"):
        apply(empty.calls, made, ["S/c"])
    assert empty.calls.call("CONSUMER.INFO.S.c")["config"]["max_batch"] == 7
    assert actions(planned(empty, file(tmp_path, first))) == {}


def test_a_replaced_stream_tells_what_is_lost_and_its_consumers_come_back(empty: Admin, tmp_path: Path) -> None:
    text = '[streams.S]\nsubjects = ["s"]\n[streams.S.consumers.c]\nmax_batch = 7\n'
    apply(empty.calls, planned(empty, file(tmp_path, text)))
    empty.numbers("S", 10, subject="s")
    empty.calls.create("S", api.consumer("S", {"durable_name": "other", "ack_policy": "explicit"}), "other")
    query = {**api.follower("spark", 1, ()), "metadata": {api.OWNER: "q-1"}}
    empty.calls.create("S", api.consumer("S", query), "spark")
    made = planned(empty, file(tmp_path, text.replace("[streams.S]", '[streams.S]\nstorage = "memory"')))
    assert actions(made) == {"S": "replace", "S/c": "create"}
    effects = " ".join(made.changes[0].effects)
    assert "10 messages" in effects
    assert "Consumers 'other' go with it. No file declares them" in effects
    assert "Penstock's query 'q-1' reads it, and stops" in effects
    apply(empty.calls, made, ["S"])
    info = empty.calls.call("STREAM.INFO.S")
    assert (info["config"]["storage"], info["state"]["messages"]) == ("memory", 0)
    assert [each["name"] for each in empty.calls.consumers("S")] == ["c"]
    assert empty.calls.call("CONSUMER.INFO.S.c")["config"]["max_batch"] == 7


def test_absent_deletes_with_permission_and_subjects_move_to_another_stream(empty: Admin, tmp_path: Path) -> None:
    empty.create("OLD", "a.>")
    empty.create("WIDE", "b.>", "c.>")
    declared = file(
        tmp_path,
        '[streams.OLD]\nabsent = true\n[streams.A]\nsubjects = ["a.x"]\n[streams.WIDE]\nsubjects = ["c.>"]\n'
        '[streams.B]\nsubjects = ["b.x"]\n',
    )
    made = planned(empty, declared)
    assert [(step.name, step.action.value) for step in made.changes] == [
        ("OLD", "delete"), ("WIDE", "update"), ("A", "create"), ("B", "create"),
    ]  # fmt: skip
    with pytest.raises(OptionError, match="--allow-replace OLD"):
        apply(empty.calls, made)
    assert sorted(empty.calls.names()) == ["OLD", "WIDE"], "nothing was changed"
    apply(empty.calls, made, ["OLD"])
    assert sorted(empty.calls.names()) == ["A", "B", "WIDE"]
    assert actions(planned(empty, declared)) == {}


def test_a_subject_that_another_stream_has_is_told_before_anything_is_sent(empty: Admin, tmp_path: Path) -> None:
    empty.create("OTHER", "a.*")
    made = planned(empty, file(tmp_path, '[streams.S]\nsubjects = ["a.b"]\n[streams.T]\nsubjects = ["*.b"]\n'))
    assert actions(made) == {"S": "impossible", "T": "impossible"}
    problems = {step.name: " ".join(step.problems) for step in made.impossible}
    assert "'a.b' overlaps with 'a.*' of stream 'OTHER', which no file names: one subject, one stream." in problems["S"]
    assert "overlaps with '*.b' of stream 'T'" in problems["S"]
    with pytest.raises(OptionError, match="nothing was changed"):
        apply(empty.calls, made)
    assert empty.calls.names() == ["OTHER"]


@pytest.mark.parametrize("what", ["changed", "deleted", "created", "consumer"])
def test_what_somebody_else_did_after_the_plan_stops_the_apply(empty: Admin, tmp_path: Path, what: str) -> None:
    text = '[streams.A]\nsubjects = ["a"]\nmax_msgs = 10\n[streams.S]\nsubjects = ["s"]\nmax_msgs = 10\n'
    if what != "created":
        empty.create("S", "s")
    if what == "consumer":
        text = '[streams.A]\nsubjects = ["a"]\n[streams.S.consumers.c]\nmax_batch = 5\n'
        empty.calls.create("S", api.consumer("S", {"durable_name": "c", "ack_policy": "explicit"}), "c")
    else:
        text += "[streams.S.consumers.c]\nmax_batch = 5\n"
    made = planned(empty, file(tmp_path, text))

    def meddle(step: Any) -> None:
        if step.name != "A":
            return
        if what == "changed":
            empty.calls.call("STREAM.UPDATE.S", {**empty.calls.call("STREAM.INFO.S")["config"], "max_bytes": 10_000})
        elif what == "deleted":
            empty.delete("S")
        elif what == "created":
            empty.create("S", "s", "t")
        else:
            empty.calls.call("CONSUMER.DELETE.S.c")
            empty.calls.create("S", api.consumer("S", {"durable_name": "c", "ack_policy": "explicit"}), "c")

    if what in ("changed", "deleted"):  # updates come first: let the meddler be in time
        made = Plan(tuple(sorted(made.steps, key=lambda step: (step.name != "A", step.name))))
    with pytest.raises(Stopped, match="somebody else has") as stopped:
        apply(empty.calls, made, tell=meddle)
    assert [step.name for step in stopped.value.done] == ["A"]
    assert stopped.value.at.name == ("S/c" if what == "consumer" else "S")
    again = planned(empty, file(tmp_path, text))
    apply(empty.calls, again, ["S", "S/c"])
    assert actions(planned(empty, file(tmp_path, text))) == {}


def test_an_apply_whose_connection_is_cut_anywhere_ends_complete(
    running: tuple[NatsServer, Admin], empty: Admin, tmp_path: Path
) -> None:
    first = '[streams.A]\nsubjects = ["a"]\n[streams.A.consumers.c]\n[streams.B]\nsubjects = ["b"]\n'
    declared = file(
        tmp_path,
        '[streams.A]\nsubjects = ["a", "aa"]\n[streams.A.consumers.c]\nack_policy = "all"\n[streams.B]\nabsent = true\n'
        '[streams.N]\nsubjects = ["b"]\n[streams.N.consumers.d]\n',
    )
    before = file(tmp_path, first, "first.toml")
    total = cuts = 0
    for after in range(0, 20_000, 1_111):
        clear(empty)
        apply(empty.calls, planned(empty, before))
        with Proxy(running[0].port) as proxy:
            admin = Admin(proxy.url)
            made = planned(admin, declared)
            proxy.soon("cut", after)
            start = proxy.connections
            done = apply(admin.calls, made, ["A/c", "B"]).done
            assert [step.name for step in done] == [step.name for step in made.changes]
            total, cuts = total + 1, cuts + (proxy.connections > start)
            admin.close()
        assert actions(planned(empty, declared)) == {}
        if cuts < total:  # the whole apply fits before the cut
            break
    assert cuts >= 5
    assert cuts == total - 1


def test_an_answer_that_never_came_is_read_back_and_not_assumed(empty: Admin, tmp_path: Path) -> None:
    class Losing(Calls):
        sent: list[str] = []  # noqa: RUF012 - of one test

        def call(self, action: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
            answer = super().call(action, body)
            if ".CREATE." in action or ".UPDATE." in action:
                self.sent.append(action)
                raise Disconnected("the answer was lost")
            return answer

    losing = Losing(empty.connection, empty.options)
    made = planned(empty, file(tmp_path, '[streams.S]\nsubjects = ["s"]\n[streams.S.consumers.c]\n'))
    apply(losing, made)
    assert losing.sent == ["STREAM.CREATE.S"], "sent once; all later calls are on a new connection"
    assert [each["name"] for each in empty.calls.consumers("S")] == ["c"]


def test_a_server_that_is_started_again_in_the_middle_is_waited_for(tmp_path: Path) -> None:
    text = "".join(f'[streams.S{i}]\nsubjects = ["s{i}"]\n' for i in range(20))
    declared = file(tmp_path, text)
    with server(tmp_path / "data") as (started, admin):
        made = planned(admin, declared)

        def harm(step: Any) -> None:
            if step.name == "S10":
                started.kill()
                started.start()

        apply(admin.calls, made, tell=harm)
        fresh = Admin(started.url)
        assert actions(planned(fresh, declared)) == {}
        fresh.close()


def test_the_messages_that_a_plan_says_are_deleted_are_deleted(empty: Admin, tmp_path: Path) -> None:
    text = '[streams.S]\nsubjects = ["s.*"]\n[streams.S.consumers.billing]\n'
    apply(empty.calls, planned(empty, file(tmp_path, text)))
    empty.publish((f"s.{i % 10}", b"x" * 100) for i in range(1000))
    for change, told in (
        ("max_msgs = 800", "max_msgs = 800 deletes about 200 of 1,000 messages"),
        ('max_bytes = "60kb"', "max_bytes = 61,440 deletes about"),
        ("max_msgs_per_subject = 10", "at least"),
    ):
        made = planned(empty, file(tmp_path, text.replace("[streams.S]\n", f"[streams.S]\n{change}\n")))
        before = empty.calls.stream("S").messages
        effects = " ".join(made.changes[0].effects)
        assert told in effects
        with pytest.raises(OptionError, match=r"would delete messages of 'S'. To allow that: --allow-replace S"):
            apply(empty.calls, made)
        assert empty.calls.stream("S").messages == before
        apply(empty.calls, made, ["S"])
        gone = before - empty.calls.stream("S").messages
        about = int(effects.split("about ")[1].split()[0].replace(",", "")) if "about" in effects else gone
        assert abs(gone - about) <= 2
        if "about" in effects:
            assert f"Consumer 'billing' has not acknowledged about {about:,} of them" in effects


def test_messages_that_came_after_the_plan_are_not_deleted_without_permission(empty: Admin, tmp_path: Path) -> None:
    empty.create("LATE", "s")
    made = planned(empty, file(tmp_path, "[streams.LATE]\nmax_msgs = 10\n"))
    assert made.refused(()) == ()
    empty.numbers("LATE", 500, subject="s")
    with pytest.raises(
        Stopped, match=r"come since the plan. To allow that: --allow-replace LATE \(nothing was changed"
    ):
        apply(empty.calls, made)
    assert empty.calls.stream("LATE").messages == 500
    apply(empty.calls, made, ["LATE"])
    assert empty.calls.stream("LATE").messages == 10


def test_old_messages_do_not_go_without_permission_when_only_discard_changes(empty: Admin, tmp_path: Path) -> None:
    empty.create("FULL", "s")
    empty.numbers("FULL", 500, subject="s")
    apply(empty.calls, planned(empty, file(tmp_path, '[streams.FULL]\nmax_msgs = 10\ndiscard = "new"\n')))
    made = planned(empty, file(tmp_path, '[streams.FULL]\ndiscard = "old"\n'))
    with pytest.raises(OptionError, match="would delete messages of 'FULL'"):
        apply(empty.calls, made)
    assert empty.calls.stream("FULL").messages == 500
    apply(empty.calls, made, ["FULL"])
    assert empty.calls.stream("FULL").messages == 10, "as the plan said"


@pytest.mark.parametrize("messages_come", ["before the plan", "after the plan"])
def test_a_narrower_filter_does_not_delete_messages_of_interest_without_permission(
    empty: Admin, tmp_path: Path, messages_come: str
) -> None:
    name = f"I{messages_come[0]}"  # each its own: files of a stream that was just deleted may still be there
    text = f'[streams.{name}]\nsubjects = ["s.*"]\nretention = "interest"\n[streams.{name}.consumers.c]\n'
    text += "filter_subjects = "
    apply(empty.calls, planned(empty, file(tmp_path, text + '["s.a", "s.b"]\n')))
    made = planned(empty, file(tmp_path, text + '["s.a"]\n'))
    empty.publish((f"s.{'ab'[i % 2]}", b"x") for i in range(100))
    if messages_come == "before the plan":
        made = planned(empty, file(tmp_path, text + '["s.a"]\n'))
    with pytest.raises(PenstockError, match=f"--allow-replace {name}/c"):
        apply(empty.calls, made, [name])
    assert empty.calls.stream(name).messages == 100
    apply(empty.calls, made, [f"{name}/c"])
    assert empty.calls.stream(name).messages == 50, "as the plan said"


class Refusing(Calls):
    """The calls, of which STREAM.CREATE fails so often: a server of the cluster is away."""

    def __init__(self, admin: Admin, times: float, then: BaseException | None = None):
        super().__init__(admin.connection, admin.options)
        self.refusals, self.then = times, then or ApiError(10005, "no suitable peers for placement, peer offline")

    def call(self, action: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if action.startswith("STREAM.CREATE") and self.refusals > 0:
            self.refusals -= 1
            raise self.then
        return super().call(action, body)


REPLACED = '[streams.S]\nsubjects = ["s"]\nmetadata = { a = "b" }\n[streams.S.consumers.c]\nmax_batch = 7\n'


@pytest.fixture
def replacing(running: tuple[NatsServer, Admin], empty: Admin, tmp_path: Path) -> Iterator[tuple[Admin, Plan]]:
    """A plan that replaces stream S, and a connection that waits for a second."""
    apply(empty.calls, planned(empty, file(tmp_path, REPLACED)))
    admin = Admin(running[0].url, reconnectTimeout="1s")
    yield admin, planned(admin, file(tmp_path, REPLACED.replace("[streams.S]", '[streams.S]\nstorage = "memory"')))
    admin.close()


def test_a_server_that_is_away_between_delete_and_create_is_waited_for(
    replacing: tuple[Admin, Plan], empty: Admin
) -> None:
    admin, made = replacing
    apply(Refusing(admin, 3), made, ["S"])
    assert empty.calls.call("STREAM.INFO.S")["config"]["storage"] == "memory"
    assert [each["name"] for each in empty.calls.consumers("S")] == ["c"]


@pytest.mark.parametrize("then", ["offline", "ctrl-c"])
def test_what_is_deleted_and_cannot_be_made_again_is_told_with_its_old_configuration(
    replacing: tuple[Admin, Plan], empty: Admin, tmp_path: Path, then: str
) -> None:
    admin, made = replacing
    with pytest.raises(Stopped) as stopped:
        apply(Refusing(admin, float("inf"), KeyboardInterrupt() if then == "ctrl-c" else None), made, ["S"])
    told = str(stopped.value)
    if then == "offline":
        assert "peer offline. It is deleted, and is not there (it was the first step; not done: 'S/c')" in told
    else:
        assert "stopped by Ctrl-C. It may be deleted and not there" in told
    assert "nothing was changed" not in told
    assert empty.calls.names() == []
    old = file(tmp_path, told.split("as a declaration:")[1])
    apply(empty.calls, planned(empty, old))
    assert actions(planned(empty, file(tmp_path, REPLACED))) == {}, "all that it was is told"


def test_a_connection_that_stays_away_after_the_delete_tells_what_may_be_lost(
    running: tuple[NatsServer, Admin], replacing: tuple[Admin, Plan], empty: Admin
) -> None:
    class Cut(Calls):
        def call(self, action: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
            if action.startswith("STREAM.DELETE"):
                super().call(action, body)
                proxy.__exit__(None, None, None)
                raise Disconnected("the connection was lost")
            return super().call(action, body)

    with Proxy(running[0].port) as proxy:
        admin = Admin(proxy.url, reconnectTimeout="1s")
        with pytest.raises(Stopped, match=r"(?s)It may be deleted and not there.*\[streams.S\].*\[streams.S.consumers"):
            apply(Cut(admin.connection, admin.options), replacing[1], ["S"])
        admin.close()
    assert empty.calls.names() == []


def test_a_stream_that_is_there_again_as_it_was_is_told_to_lack_its_consumers(
    replacing: tuple[Admin, Plan], empty: Admin
) -> None:
    admin, made = replacing
    with pytest.raises(Stopped, match="begins anew, and is empty; its consumers 'c' are gone") as stopped:
        apply(Refusing(admin, 1, ApiError(10052, "no")), made, ["S"])
    assert "[streams.S.consumers.c]\nmax_batch = 7" in stopped.value.was
    assert "nothing was changed" not in str(stopped.value)
    assert empty.calls.call("STREAM.INFO.S")["config"]["storage"] == "file"


def test_an_account_that_may_not_list_streams_plans_those_of_its_files(tmp_path: Path) -> None:
    config = f"""
    jetstream {{ store_dir: "{tmp_path / "data"}" }}
    authorization {{ users: [
      {{ user: all, password: x }}
      {{ user: few, password: x, permissions: {{ subscribe: "_INBOX.>",
        publish: ["$JS.API.STREAM.*.S", "$JS.API.CONSUMER.*.S", "$JS.API.CONSUMER.*.S.>"] }} }} ] }}
    """
    declared = file(tmp_path, '[streams.S]\nsubjects = ["s"]\n[streams.S.consumers.c]\n')
    with NatsServer(tmp_path / "server", config=config) as started:
        few = Admin(started.url, user="few", password="x")
        made = planned(few, declared)
        assert [text.split(":")[0] for text in made.notes] == [
            "The limits of the account are not known",
            "Other streams are not known, so neither are subjects that they have",
        ]
        apply(few.calls, made)
        assert actions(planned(few, declared)) == {}
        with pytest.raises(Exception, match="Permissions Violation"):
            live.look(few.calls)
        few.close()


def test_limits_of_the_account_are_told_before(tmp_path: Path) -> None:
    config = f'jetstream {{ store_dir: "{tmp_path / "data"}", max_file_store: 1GB }}\naccounts {{ A {{ jetstream {{ max_file: 100MB, max_bytes_required: true, max_streams: 3 }}, users: [ {{ user: a, password: x }} ] }} }}'  # noqa: E501
    with NatsServer(tmp_path / "server", config=config) as started:
        admin = Admin(started.url, user="a", password="x")
        text = '[streams.S]\nmax_bytes = "90mb"\n[streams.T]\n[streams.U]\nmax_bytes = "1gb"\n'
        made = planned(admin, file(tmp_path, text))
        assert actions(made) == {"S": "create", "T": "impossible", "U": "impossible"}
        assert "the account demands a 'max_bytes' of every stream." in [p for s in made.impossible for p in s.problems]
        assert any("1gb more for this stream are too much" in p for s in made.impossible for p in s.problems)
        both = planned(admin, file(tmp_path, '[streams.S]\nmax_bytes = "90mb"\n[streams.T]\nmax_bytes = "90mb"\n'))
        assert sorted(actions(both).values()) == ["create", "impossible"], "together they are too much"
        admin.close()


@pytest.mark.parametrize("version", ["2.10.26", "2.15.1"])
def test_what_is_used_without_a_limit_does_not_make_a_new_stream_impossible(version: str, tmp_path: Path) -> None:
    config = f'jetstream {{ store_dir: "{tmp_path / "data"}" }}\naccounts {{ A {{ jetstream {{ max_file: 1MB }}, users: [ {{ user: a, password: x }} ] }} }}'  # noqa: E501
    with NatsServer(tmp_path / "server", config=config, executable=server_binary(version)) as started:
        admin = Admin(started.url, user="a", password="x")
        admin.create("U", "u")
        admin.publish(("u", bytes(10_000)) for _ in range(60))
        declared = file(tmp_path, '[streams.S]\nmax_bytes = "500kb"\n')
        apply(admin.calls, planned(admin, declared))
        assert actions(planned(admin, declared)) == {}
        admin.close()


class Away(Calls):
    """The calls of an account whose stream S is not in lists, as its leader is away."""

    answers = True  # whether S answers where it is asked by its name

    def answer(self, reply: Any) -> dict[str, Any]:
        found = super().answer(reply)
        streams = found.get("streams")
        if isinstance(streams, list):
            found["streams"] = [each for each in streams if each["config"]["name"] != "S"]
            return found | {"missing": ["S"]}
        if found.get("config", {}).get("name") == "S" and not self.answers:
            raise ApiError(10118, "stream is offline")
        return found


def test_a_stream_that_the_list_lacks_is_asked_by_its_name_or_the_difference_is_not_told(
    running: tuple[NatsServer, Admin], empty: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file(tmp_path, '[streams.S]\nsubjects = ["s"]\n[streams.T]\nsubjects = ["t"]\n')
    apply(empty.calls, planned(empty, load([tmp_path / "streams.toml"])))
    monkeypatch.setattr("penstock.cli.jetstream.asking.Calls", Away)
    ran = run(running[0].url, "diff", str(tmp_path / "streams.toml"))
    assert (ran.exit_code, ran.output) == (0, "no difference\n"), ran.exception
    monkeypatch.setattr(Away, "answers", False)
    ran = run(running[0].url, "diff", str(tmp_path / "streams.toml"))
    assert ran.exit_code == 2
    assert "These streams did not answer: S." in ran.output
    assert "create" not in ran.output
    assert "no difference" not in ran.output
    file(tmp_path, '[streams.T]\nsubjects = ["t"]\n')
    ran = run(running[0].url, "diff", str(tmp_path / "streams.toml"))
    assert (ran.exit_code, "no difference" in ran.output) == (2, False), "a stream that no file names may be there"


def test_more_streams_and_consumers_than_a_page_are_seen(empty: Admin) -> None:
    bodies = [json.dumps({"name": f"M{i}", "subjects": [f"m{i}"], "storage": "memory"}).encode() for i in range(300)]
    empty.connection.requests([(f"$JS.API.STREAM.CREATE.M{i}", body) for i, body in enumerate(bodies)])
    asked = [
        (
            f"$JS.API.CONSUMER.CREATE.M0.c{i}",
            api.consumer("M0", {"durable_name": f"c{i}", "ack_policy": "none", "mem_storage": True}),
        )
        for i in range(300)
    ]
    empty.connection.requests(asked)
    found = live.look(empty.calls)
    assert len(found.streams) == 300
    assert len(found.streams["M0"].consumers or {}) == 300
    declared = Declared({"X": DeclaredStream("X", {"subjects": ["m299"]}, NOWHERE)})
    assert "of stream 'M299'" in planned(empty, declared).impossible[0].problems[0]


# Values that each server takes, each with what it is changed to in place, if it can be. Fields that need others are set
# together with them.
WHOLE: dict[str, tuple[Any, Any]] = {
    "description": ("a", "b"), "subjects": (["w.>"], ["w.>", "v"]), "max_msgs": (1000, 500),
    "max_bytes": (10_000_000, 5_000_000), "max_age": (7_200_000_000_000, 3_600_000_000_000),
    "max_msg_size": (1000, 2000),
    "max_msgs_per_subject": (5, 3), "discard": ("old", "new"), "discard_new_per_subject": (False, True),
    "duplicate_window": (60_000_000_000, 30_000_000_000), "compression": ("s2", "none"),
    "sources": ([{"name": "ORIGIN", "filter_subject": "o.a"}],
                [{"name": "ORIGIN", "subject_transforms": [{"src": "o.b", "dest": "p"}]}]),
    "placement": ({"cluster": "C", "tags": ["a"]}, {}), "subject_transform": ({"src": "w.*", "dest": "w.a.$1"}, {}),
    "republish": ({"src": "w.x", "dest": "rx", "headers_only": True}, {}), "allow_direct": (True, False),
    "allow_msg_ttl": (False, True), "subject_delete_marker_ttl": (0, 5_000_000_000), "allow_atomic": (True, False),
    "allow_batched": (True, False), "persist_mode": ("default", "default"), "allow_rollup_hdrs": (True, True),
    "deny_delete": (False, True), "no_ack": (False, True), "first_seq": (10, 10),
    "consumer_limits": ({"max_ack_pending": 5000}, {"max_ack_pending": 6000, "inactive_threshold": 10**15}),
    "metadata": ({"a": "b"}, {"c": "d"}), "storage": ("file", "file"), "num_replicas": (1, 1),
    "retention": ("limits", "interest"), "max_consumers": (10, 10),
}  # fmt: skip
PULL: dict[str, tuple[Any, Any]] = {
    "description": ("a", "b"), "ack_policy": ("all", "all"), "deliver_policy": ("by_start_sequence",) * 2,
    "opt_start_seq": (15, 15), "ack_wait": (5_000_000_000, 6_000_000_000), "max_deliver": (5, 6),
    "filter_subjects": (["w.a"], ["w.b", "w.c"]), "max_ack_pending": (100, 200), "replay_policy": ("original",) * 2,
    "headers_only": (True, False), "sample_freq": ("50", "20%"), "inactive_threshold": (10**13, 10**14),
    "num_replicas": (1, 0), "mem_storage": (True, True), "max_waiting": (10, 10), "max_batch": (10, 20),
    "max_bytes": (1000, 2000), "max_expires": (10**9, 10**10), "metadata": ({"a": "b"}, {}),
    "priority_policy": ("overflow", "pinned_client"), "priority_groups": (["g"], ["h"]),
    "priority_timeout": (0, 10**10), "pause_until": ("2099-01-01T00:00:00Z", "2098-01-01T00:00:00Z"),
}  # fmt: skip
PUSH: dict[str, tuple[Any, Any]] = {
    "deliver_subject": ("to.a", "to.b"), "deliver_group": ("g", "h"), "flow_control": (True, True),
    "idle_heartbeat": (10**9, 10**9), "rate_limit_bps": (10_000, 20_000), "backoff": ([10**9, 10**10], [10**9]),
    "deliver_policy": ("by_start_time",) * 2, "opt_start_time": ("2026-01-01T00:00:00Z",) * 2,
    "filter_subject": ("w.a", "w.b"),
}  # fmt: skip


def test_every_field_is_tried_on_every_version() -> None:
    elsewhere = {"mirror", "mirror_direct", "allow_msg_counter", "allow_msg_schedules", "deny_purge", "sealed"}
    assert {each.name for each in STREAM} == WHOLE.keys() | elsewhere
    assert {each.name for each in CONSUMER} == PULL.keys() | PUSH.keys()


@pytest.mark.parametrize("version", VERSIONS)
def test_all_fields_that_a_version_knows_are_applied_and_changed(version: str, tmp_path: Path) -> None:
    level = tuple(map(int, version.split(".")[:2]))

    def of(fields: dict[str, Field], table: dict[str, tuple[Any, Any]], number: int) -> dict[str, Any]:
        return {name: pair[number] for name, pair in table.items() if fields[name].since <= level}

    def declared(number: int) -> Declared:
        consumers = {
            name: DeclaredConsumer(name, of(CONSUMER_FIELDS, table, number), NOWHERE)
            for name, table in (("pull", PULL), ("push", PUSH))
        }
        streams = {
            "ORIGIN": DeclaredStream("ORIGIN", {"subjects": ["o.>"], "allow_direct": True}, NOWHERE),
            "W": DeclaredStream("W", of(STREAM_FIELDS, WHOLE, number), NOWHERE, consumers),
            "Q": DeclaredStream("Q", {"retention": "workqueue", "deny_purge": bool(number)}, NOWHERE),
            "Z": DeclaredStream("Z", {"sealed": True} if number else {}, NOWHERE),
        }
        mirror: dict[str, Any] = {"mirror": {"name": "ORIGIN"}, "mirror_direct": True}
        if number and level >= (2, 12):
            mirror = {"mirror": {}, "subjects": ["promoted"]}
        streams["M"] = DeclaredStream("M", mirror, NOWHERE)
        if level >= (2, 12):
            streams["C"] = DeclaredStream("C", {"allow_msg_counter": True, "max_consumers": 5 + number}, NOWHERE)
            later = {"allow_msg_schedules": bool(number), "allow_rollup_hdrs": True}
            streams["L"] = DeclaredStream("L", later, NOWHERE)
            streams["P"] = DeclaredStream("P", {"persist_mode": "async"}, NOWHERE)
        return Declared(streams)

    with server(tmp_path, executable=server_binary(version)) as (_, admin):
        for number in (0, 1):
            wanted = declared(number)
            made = planned(admin, wanted)
            assert made.impossible == ()
            assert set(actions(made).values()) == ({"create"} if not number else {"update"}), [
                (step.name, change) for step in made.changes for change in step.changes if change.why_not
            ]
            result = apply(admin.calls, made)
            assert result.remarks == ()
            assert actions(planned(admin, wanted)) == {}
            imported = file(tmp_path, writing.of_live(live.look(admin.calls)))
            assert actions(planned(admin, imported)) == {}
        newer = Declared({"N": DeclaredStream("N", {"allow_batched": True}, NOWHERE)})
        made = planned(admin, newer)
        if level < (2, 14):
            assert made.impossible[0].problems == (f"'allow_batched' needs server 2.14; this is {version}.",)
        else:
            assert actions(made) == {"N": "create"}


def one_of(*options: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(options)


def some_of(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """A few fields: with all of them at once, hardly anything goes together."""
    names = st.lists(st.sampled_from(sorted(fields)), max_size=6, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: fields[name] for name in chosen}))


STREAMS = some_of(
    {
        "description": one_of("", "a", 'b ${X} "q" \\ é'),
        "storage": one_of("file", "memory"),
        "retention": one_of("limits", "interest", "workqueue"),
        "max_msgs": one_of(-1, 0, 1, 1000),
        "max_bytes": one_of(-1, 10_000, 1 << 20),
        "max_age": one_of(0, 100_000_000, 3_600_000_000_000, 90_500_000_000),
        "duplicate_window": one_of(100_000_000, 60_000_000_000),
        "max_msg_size": one_of(-1, 1000),
        "max_msgs_per_subject": one_of(-1, 1, 10),
        "max_consumers": one_of(-1, 5, 10),
        "discard": one_of("old", "new"),
        "discard_new_per_subject": st.booleans(),
        "compression": one_of("none", "s2"),
        "allow_direct": st.booleans(),
        "allow_rollup_hdrs": st.booleans(),
        "deny_delete": st.booleans(),
        "deny_purge": st.booleans(),
        "allow_msg_ttl": st.booleans(),
        "subject_delete_marker_ttl": one_of(0, 1_000_000_000, 60_000_000_000),
        "allow_atomic": st.booleans(),
        "allow_batched": st.booleans(),
        "allow_msg_counter": st.booleans(),
        "allow_msg_schedules": st.booleans(),
        "persist_mode": one_of("default", "async"),
        "no_ack": st.booleans(),
        "mirror": one_of({}, {"name": "ORIGIN"}, {"name": "ORIGIN", "filter_subject": "o.a"}),
        "sources": one_of([], [{"name": "ORIGIN"}], [{"name": "ORIGIN", "opt_start_seq": 5}, {"name": "NONE"}]),
        "subject_transform": one_of({}, {"src": "a.*", "dest": "a.b.{{wildcard(1)}}"}),
        "republish": one_of({}, {"dest": "again.>"}, {"src": "a.x", "dest": "again.x"}),
        "placement": one_of({}, {"tags": ["x", "y"]}),
        "consumer_limits": one_of({}, {"max_ack_pending": 5000}, {"inactive_threshold": 10**12}),
        "metadata": one_of({}, {"env": "prod"}, {"a.b": "c", "d": ""}),
        "first_seq": one_of(0, 100),
        "subjects": one_of(["a.>"], ["a.*", "b"], ["b", "a.*"]),
    },
)
CONSUMERS = some_of(
    {
        "description": one_of("", "x"),
        "ack_policy": one_of("explicit", "all", "none"),
        "deliver_policy": one_of("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"),
        "opt_start_seq": one_of(0, 3),
        "opt_start_time": one_of("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z"),
        "ack_wait": one_of(1_000_000_000, 30_000_000_000),
        "max_deliver": one_of(-1, 1, 5),
        "backoff": one_of([], [1_000_000_000], [1_000_000_000, 5_000_000_000]),
        "filter_subjects": one_of([], ["a.x"], ["a.x", "b"]),
        "max_ack_pending": one_of(-1, 10, 1000),
        "replay_policy": one_of("instant", "original"),
        "headers_only": st.booleans(),
        "sample_freq": one_of("", "10"),
        "inactive_threshold": one_of(0, 10**11),
        "num_replicas": one_of(0, 1),
        "mem_storage": st.booleans(),
        "max_waiting": one_of(1, 512),
        "max_batch": one_of(0, 10),
        "deliver_subject": one_of("", "to.me", "to.you"),
        "flow_control": st.booleans(),
        "idle_heartbeat": one_of(0, 1_000_000_000),
        "priority_policy": one_of("none", "overflow", "pinned_client", "prioritized"),
        "priority_groups": one_of([], ["g"]),
        "metadata": one_of({}, {"k": "v"}),
    },
)


TAKEN = Counter[str]()  # what the random declarations came to


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(STREAMS, CONSUMERS), min_size=2, max_size=3))
def test_random_declarations_are_planned_as_the_server_takes_them(
    running: tuple[NatsServer, Admin], tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[Any, Any]]
) -> None:
    """A plan that is possible is accepted, and planned again to nothing; what is not changed in place is refused in
    place; and whatever is applied is imported to the same. Changes that are impossible are left out.
    """
    admin = running[1]
    begin(admin)
    for stream, consumer in rounds:
        consumers = {"c": DeclaredConsumer("c", consumer, NOWHERE)}
        wanted = Declared({"S": DeclaredStream("S", stream, NOWHERE, consumers)})
        made = planned(admin, wanted)
        if made.impossible:
            wanted = Declared({"S": DeclaredStream("S", stream, NOWHERE, {})})
            made = planned(admin, wanted)
        if made.impossible:
            TAKEN["impossible"] += 1
            continue
        TAKEN["replace" if any(step.needs_permission for step in made.changes) else "in place"] += 1
        for step in made.changes:
            # These the server takes in place, and does nothing.
            silent = {"mem_storage"} >= {change.field for change in step.changes if change.why_not}
            if step.action is Action.REPLACE and not silent:
                refused_in_place(admin, step)
        result = apply(admin.calls, made, ["S", "S/c"])
        assert result.remarks == ()
        assert actions(planned(admin, wanted)) == {}
        text = writing.of_live(live.look(admin.calls))
        assert actions(planned(admin, file(tmp_path_factory.getbasetemp(), text))) == {}, text


def test_the_random_declarations_were_not_all_impossible() -> None:
    if not TAKEN:
        pytest.skip("the test with random declarations did not run before this one")
    assert min(TAKEN["replace"], TAKEN["in place"]) >= EXAMPLES / 10, TAKEN


def refused_in_place(admin: Admin, step: Any) -> None:
    if step.consumer:
        body = {"stream_name": step.stream, "config": step.config, "action": "update"}
        with pytest.raises(ApiError):
            admin.calls.call(f"CONSUMER.CREATE.{step.stream}.{step.consumer}", body)
    else:
        with pytest.raises(ApiError):
            admin.calls.call(f"STREAM.UPDATE.{step.stream}", step.config)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(STREAMS, CONSUMERS)
def test_what_a_plan_calls_impossible_the_server_does_not_take_as_it_is_declared(
    running: tuple[NatsServer, Admin], stream: Any, consumer: Any
) -> None:
    """It refuses it, or makes something else of it: then a plan would never be at its end."""
    admin = running[1]
    begin(admin)
    wanted = Declared({"S": DeclaredStream("S", stream, NOWHERE, {"c": DeclaredConsumer("c", consumer, NOWHERE)})})
    for step in planned(admin, wanted).steps:
        if step.consumer and not admin.calls.streams(["S"])["S"]:
            continue
        body = {"stream_name": "S", "config": step.config, "action": "create"}
        ask = ("CONSUMER.CREATE.S.c", body) if step.consumer else ("STREAM.CREATE.S", step.config)
        if step.action is not Action.IMPOSSIBLE:
            admin.calls.call(*ask)
            continue
        try:
            admin.calls.call(*ask)
        except ApiError:
            continue
        assert [each.name for each in planned(admin, wanted).steps if each.action is not Action.NOTHING], step.problems


def test_nack_resources_are_read_back_to_the_same_plan(empty: Admin, tmp_path: Path) -> None:
    declared = file(tmp_path, ORDERS)
    written = nack.export(declared)
    assert written.left_out == ()
    (tmp_path / "nack.yaml").write_text(written.text)
    again = load([tmp_path / "nack.yaml"])
    apply(empty.calls, planned(empty, again))
    assert actions(planned(empty, declared)) == {}
    assert actions(planned(empty, again)) == {}


def run(url: str, *words: str) -> Any:
    return CliRunner().invoke(app, ["jetstream", *words, f"servers={url}"])


def test_the_commands_say_what_they_do_and_end_with_codes_for_scripts(
    running: tuple[NatsServer, Admin], empty: Admin, tmp_path: Path
) -> None:
    url, path = running[0].url, tmp_path / "s.toml"
    path.write_text('[streams.S]\nsubjects = ["s"]\n[streams.S.consumers.c]\n')
    ran = run(url, "plan", str(path))
    assert ran.exit_code == 0
    assert "+ create stream 'S'" in ran.output
    fingerprint = ran.output.split("plan ")[1].split(":")[0]
    refused = run(url, "apply", "--json", str(path))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "with --json nobody is asked" in " ".join(refused.stderr.split())
    refused = run(url, "apply", str(path))
    assert refused.exit_code == 1
    assert "--yes makes the changes" in " ".join(refused.output.split())
    assert run(url, "apply", "--yes", "--expect", "000000000000", str(path)).exit_code == 1
    assert empty.calls.names() == []
    ran = run(url, "apply", "--yes", "--expect", fingerprint, str(path))
    assert (ran.exit_code, "2 changes made" in ran.output) == (0, True), ran.output
    assert run(url, "plan", str(path)).output == "nothing to do\n"
    assert (run(url, "diff", str(path)).exit_code, run(url, "diff", str(path)).output) == (0, "no difference\n")
    empty.create("OTHER", "other")
    ran = run(url, "diff", str(path))
    assert (ran.exit_code, ran.output) == (1, "? OTHER: on the server, in no file\n")
    path.write_text('[streams.S]\nstorage = "memory"\n')
    ran = run(url, "plan", str(path))
    assert ran.exit_code == 3
    assert "to allow it: --allow-replace S" in ran.output
    assert run(url, "apply", "--yes", str(path)).exit_code == 3
    assert run(url, "plan", "--allow-replace", "S", str(path)).exit_code == 0
    mistyped = run(url, "plan", "--allow-replace", "s", "--allow-replace", "SS", str(path))
    assert mistyped.exit_code == 3
    assert "--allow-replace SS allows nothing" in mistyped.stderr
    assert "Did you mean 'S'?" in mistyped.stderr
    told = json.loads(run(url, "plan", "--json", str(path)).stdout)
    assert [(step["name"], step["action"], step["needsPermission"]) for step in told["steps"]] == [
        ("S", "replace", True)
    ]
    told = json.loads(run(url, "apply", "--yes", "--json", "--allow-replace", "S", str(path)).stdout)
    assert told["done"] == ["S"]
    path.write_text('[streams.S]\nstorag = "memory"\n')
    assert run(url, "plan", str(path)).exit_code == 1
    assert run(url, "diff", str(path)).exit_code == 2
    assert f"{path}:2: unknown field 'storag'" in " ".join(run(url, "diff", str(path)).output.split())
    target = tmp_path / "imported.toml"
    assert run(url, "import", "S", "-o", str(target)).exit_code == 0
    assert target.read_text() == '[streams.S]\nsubjects = ["s"]\nstorage = "memory"\n'
    assert "Did you mean 'S'?" in run(url, "import", "SS").output
    assert run(url, "import", "S", "-o", str(target)).exit_code == 1, "it does not overwrite a file"


def test_odd_names_and_texts_survive(empty: Admin, tmp_path: Path) -> None:
    name = "ü-'\"$[x]{y}"
    config = {"description": 'a\x7f\tb\n${HOME} "q" [red]x[/]', "metadata": {"file": "no such", "": "x"}}
    empty.create(name, "odd", allow_direct=False, **config)
    empty.calls.create(name, api.consumer(name, {"durable_name": "c=1", "ack_policy": "none"}), "c=1")
    text = writing.of_live(live.look(empty.calls))
    declared = file(tmp_path, text)
    assert actions(planned(empty, declared)) == {}
    assert declared.streams[name].config["description"] == config["description"]
    assert declared.streams[name].consumers["c=1"].config == {"ack_policy": "none"}
    assert values.duration(1) == "1ns"
