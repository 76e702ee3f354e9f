"""Declared streams without a server: files, comparisons, plans, and what is written."""

import io
import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from penstock.cli import app
from penstock.cli.jetstream import declared as commands
from penstock.clients.jetstream import api
from penstock.clients.nats.subjects import intersect
from penstock.errors import OptionError
from penstock.operate.declared import between, buckets, effects, nack, names, terraform, values, writing
from penstock.operate.declared.configs import differences, digest, merged
from penstock.operate.declared.fields import BUCKET, CONSUMER, CONSUMER_FIELDS, STREAM, STREAM_FIELDS, table
from penstock.operate.declared.files import load
from penstock.operate.declared.model import (
    Declared,
    DeclaredConsumer,
    DeclaredStream,
    Live,
    LiveConsumer,
    LiveStream,
    Place,
)
from penstock.operate.declared.plan import plan
from penstock.operate.declared.steps import Action, Plan
from penstock.operate.declared.values import Kind
from penstock.options.documents import FileError

NOWHERE = Place(Path("x.toml"), 1)
HOUR = 3_600_000_000_000


def stream(name: str, *, consumers: dict[str, LiveConsumer] | None = None, **config: Any) -> LiveStream:
    base = {"name": name, "subjects": [name.lower()], "storage": "file", "retention": "limits", "num_replicas": 1}
    return LiveStream(name, base | config, "2026-01-01T00:00:00Z", consumers=consumers or {})


def there(*streams: LiveStream, version: tuple[int, int] = (2, 15)) -> Live:
    server = f"{version[0]}.{version[1]}.0"
    return Live(version, {each.name: each for each in streams}, server, is_clustered=False, now=10**15)


def said(name: str, consumers: dict[str, dict[str, Any]] | None = None, **config: Any) -> DeclaredStream:
    return DeclaredStream(
        name, config, NOWHERE, {key: DeclaredConsumer(key, each, NOWHERE) for key, each in (consumers or {}).items()}
    )


def of(*streams: DeclaredStream) -> Declared:
    return Declared({each.name: each for each in streams})


def actions(made: Plan) -> dict[str, str]:
    return {step.name: step.action.value for step in made.steps if step.action is not Action.NOTHING}


def problems(made: Plan) -> str:
    return " ".join(text for step in made.impossible for text in step.problems)


@given(st.integers(0, 10**18))
def test_a_duration_is_written_and_read_back_to_the_nanosecond(nanoseconds: int) -> None:
    assert values.nanoseconds(values.duration(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    ("text", "wanted"), [("1h30m", 5400), ("7d", 604_800), ("0.5s", 0.5), ("0", 0), ("720h", 2_592_000)]
)
def test_durations_are_those_of_users_and_of_go(text: str, wanted: float) -> None:
    assert values.nanoseconds(text) == wanted * 10**9


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.OBJECT, Kind.OBJECTS)])
def test_a_value_of_the_wrong_kind_is_told_what_it_must_be(kind: Kind) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        values.parse(kind, 1.5 if kind is not Kind.BOOL else 1)


def test_times_are_compared_as_the_server_writes_them() -> None:
    assert values.moment("2026-01-01T02:00:00.500+02:00") == "2026-01-01T00:00:00.5Z"
    wanted = tomllib.loads("a = 2026-01-01T02:00:00.123456+02:00")["a"]
    assert values.moment(wanted) == "2026-01-01T00:00:00.123456Z"
    with pytest.raises(ValueError, match="zone"):
        values.moment("2026-01-01T00:00:00")


def test_all_that_is_wrong_in_all_files_is_told_at_once_with_lines(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        '[streams.A]\nsubject = ["a"]\nmax_age = "soon"\nstorage = "disk"\nmirror = { nam = "B" }\n'
        '[streams.A.consumers.c]\nack_wait = 5\nfilter_subject = "a"\nfilter_subjects = ["b"]\n'
        '[streams."a.b"]\n[stream.X]\n'
    )
    (tmp_path / "b.toml").write_text(
        "[streams.A]\nmax_msgs = 1\n[streams.B]\nabsent = true\nmax_msgs = 1\nextra = { max_bytes = 1 }\n"
        '[buckets.b]\nhistory = 0\nnum_replicas = true\n[buckets."ö"]\n'
    )
    with pytest.raises(FileError) as error:
        load([tmp_path])
    told = str(error.value).replace(f"{tmp_path}/", "")
    for line in (
        "a.toml:2: unknown field 'subject' in [streams.A]. Did you mean 'subjects'?",
        "a.toml:3: 'max_age' must be a duration such as 500ms, 10s, 15m or 7d.",
        "a.toml:4: 'storage' is 'disk', which is none of file, memory.",
        "a.toml:5: unknown field 'nam' in 'mirror'. Did you mean 'name'?",
        "a.toml:5: 'mirror' needs 'name': the stream to copy from.",
        "a.toml:7: 'ack_wait' must be a duration",
        "a.toml:8: 'filter_subject' and 'filter_subjects': leave one of both out.",
        "a.toml:10: a stream cannot be called 'a.b'",
        "a.toml:11: unknown table 'stream'.",
        "b.toml:1: stream 'A' is declared in a.toml:1 too.",
        "b.toml:4: 'absent = true' asks to delete it: leave 'max_msgs', 'extra' out.",
        "b.toml:6: 'max_bytes' is no field to go into 'extra'",
        "b.toml:8: 'history' must be at least 1.",
        "b.toml:9: 'num_replicas' must be a whole number.",
        "b.toml:10: a bucket cannot be called 'ö': letters, digits, - and _ only.",
    ):
        assert line in told


def test_consumers_of_a_stream_may_be_in_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[streams.A]\nsubjects = ["a"]\n')
    (tmp_path / "b.toml").write_text("[streams.A.consumers.b]\n[streams.LOST.consumers.c]\n")
    declared = load([tmp_path])
    assert list(declared.streams["A"].consumers) == ["b"]
    made = plan(declared, there())
    assert actions(made) == {"A": "create", "A/b": "create", "LOST": "impossible", "LOST/c": "impossible"}
    assert "it does not exist, and files only say consumers of it" in problems(made)


def test_metadata_that_looks_like_a_secret_is_plain_text_and_variables_are_put_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGION", "eu")
    text = '[streams.A]\nsubjects = ["orders.${REGION}.>"]\nmetadata = { env = "prod" }\n'
    text += '[streams.B]\nmetadata = { file = "x/y" }\n'
    (tmp_path / "a.toml").write_text(text)
    streams = load([tmp_path / "a.toml"]).streams
    assert streams["A"].config == {"subjects": ["orders.eu.>"], "metadata": {"env": "prod"}}
    assert streams["B"].config == {"metadata": {"file": "x/y"}}
    (tmp_path / "a.toml").write_text('[streams.A]\ndescription = "${NOT_SET_ANYWHERE}"\n')
    with pytest.raises(FileError, match="NOT_SET_ANYWHERE"):
        load([tmp_path / "a.toml"])


def test_a_pipeline_is_told_from_a_declaration(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[source]\ntype = "rate"\n')
    with pytest.raises(FileError, match="this is a pipeline; `penstock run` takes it"):
        load([tmp_path / "a.toml"])


def test_an_update_keeps_fields_that_only_a_newer_server_knows() -> None:
    live_config = {
        "name": "S", "subjects": ["s"], "max_msgs": -1, "new_field": {"deep": [1]}, "mirror": {"name": "O", "newer": 1},
        "sources": [{"name": "A", "newer": 2}], "metadata": {"_nats.ver": "3.0", "penstock.query": "q", "a": "b"},
    }  # fmt: skip
    declared = {
        "max_msgs": 5,
        "mirror": {"name": "O"},
        "sources": [{"name": "A"}, {"name": "B"}],
        "metadata": {"c": "d"},
    }
    config = merged(STREAM_FIELDS, live_config, declared)
    assert config["new_field"] == {"deep": [1]}
    assert config["mirror"] == {"name": "O", "newer": 1}
    assert config["sources"] == [{"name": "A", "newer": 2}, {"name": "B"}]
    assert config["metadata"] == {"penstock.query": "q", "c": "d"}
    assert differences(STREAM_FIELDS, {"mirror": {"name": "O"}}, live_config) == {}
    assert differences(STREAM_FIELDS, {"new_field": {"deep": [2]}}, live_config) == {
        "new_field": ({"deep": [1]}, {"deep": [2]})
    }


def test_values_that_say_the_same_are_no_difference() -> None:
    live_config = {
        "name": "S",
        "subjects": ["b", "a"],
        "max_msgs": -1,
        "consumer_limits": {},
        "republish": {"src": ">", "dest": "x"},
    }
    declared = {
        "subjects": ["a", "b"], "max_msgs": 0, "consumer_limits": {}, "republish": {"dest": "x"}, "placement": {},
        "persist_mode": "default", "description": "", "allow_atomic": False,
    }  # fmt: skip
    assert differences(STREAM_FIELDS, declared, live_config) == {}
    one, several = {"filter_subject": "a"}, {"filter_subjects": ["a"]}
    assert differences(CONSUMER_FIELDS, several, one) == differences(CONSUMER_FIELDS, one, several) == {}
    assert differences(CONSUMER_FIELDS, {"filter_subjects": []}, one) == {"filter_subjects": (["a"], [])}


def test_a_field_of_a_newer_server_is_told_and_at_its_default_it_is_left_out() -> None:
    made = plan(of(said("S", allow_atomic=True), said("T", allow_atomic=False, subjects=["t"])), there(version=(2, 11)))
    assert actions(made) == {"S": "impossible", "T": "create"}
    assert problems(made) == "'allow_atomic' needs server 2.12; this is 2.11.0."
    assert made.changes[0].config == {"name": "T", "subjects": ["t"]}
    one = {"c": {"ack_policy": "flow_control", "deliver_subject": "x"}}
    assert "ack_policy = 'flow_control' needs server 2.14" in problems(plan(of(said("S", one)), there(version=(2, 12))))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max_age": HOUR, "duplicate_window": 2 * HOUR}, "longer than max_age, 1h"),
        ({"discard_new_per_subject": True}, "needs discard = 'new'"),
        ({"deny_purge": True, "allow_rollup_hdrs": True}, "'deny_purge' forbids that"),
        ({"mirror": {"name": "O"}, "subjects": ["a"]}, "'subjects' does not go with 'mirror'"),
        ({"num_replicas": 3}, "this server is no part of a cluster"),
        ({"num_replicas": 7}, "at most 5"),
        ({"subjects": ["a.>", "a.b"]}, "a message would be stored twice"),
        ({"subjects": [">"]}, "needs no_ack = true"),
        ({"subjects": ["$JS.API.>"]}, "subjects of the server itself"),
        ({"subjects": ["a..b"]}, "has an empty token"),
        ({"subjects": ["a"], "republish": {"dest": "a"}}, "that would never end"),
        ({"sealed": True}, "a new stream cannot be sealed"),
        ({"persist_mode": "async", "storage": "memory"}, "does not go with memory"),
        ({"subject_delete_marker_ttl": HOUR}, "needs allow_msg_ttl = true"),
        ({"sources": [{"name": "S"}]}, "copy each other in a circle"),
    ],
)
def test_what_the_server_would_refuse_is_told_before(config: dict[str, Any], words: str) -> None:
    made = plan(of(said("S", **config)), there())
    assert actions(made) == {"S": "impossible"}
    assert words in problems(made)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"deliver_policy": "by_start_sequence"}, "needs 'opt_start_seq'"),
        ({"opt_start_seq": 5}, "needs deliver_policy = 'by_start_sequence'"),
        ({"backoff": [10**9, 10**10], "max_deliver": 1}, "'backoff' has 2 waits"),
        ({"backoff": [10**9], "ack_wait": HOUR}, "the server takes the first of it, 1s"),
        ({"idle_heartbeat": 10**9}, "needs 'deliver_subject'"),
        ({"deliver_subject": "s"}, "which the stream stores itself"),
        ({"filter_subjects": ["s", ">"]}, "the filter 's' is a part of '>'"),
        ({"priority_groups": ["a"]}, "needs a 'priority_policy'"),
        ({"num_replicas": 3}, "but the stream has 1"),
        ({"max_ack_pending": 0}, "-1 is no limit"),
    ],
)
def test_what_the_server_would_refuse_of_a_consumer_is_told_before(config: dict[str, Any], words: str) -> None:
    made = plan(of(said("S", {"c": config}, subjects=["s"])), there())
    assert actions(made) == {"S": "create", "S/c": "impossible"}
    assert words in problems(made)


def test_two_consumers_of_a_work_queue_may_not_want_the_same() -> None:
    queue = stream("Q", retention="workqueue", subjects=["q.>"])
    made = plan(of(said("Q", {"a": {"filter_subjects": ["q.a"]}, "b": {"filter_subjects": ["q.*"]}})), there(queue))
    assert actions(made) == {"Q/a": "impossible", "Q/b": "impossible"}
    assert "consumers 'a' and 'b' of a work queue would get the same messages" in problems(made)


def test_streams_that_would_exchange_subjects_are_told_to_do_it_in_two_steps() -> None:
    made = plan(of(said("A", subjects=["b"]), said("B", subjects=["a"])), there(stream("A"), stream("B")))
    assert actions(made) == {"A": "impossible", "B": "impossible"}
    assert "do it in two steps" in problems(made)


def test_a_subject_is_freed_before_it_is_taken() -> None:
    made = plan(of(said("A", subjects=["x.>"]), said("Z", subjects=["z"])), there(stream("Z", subjects=["x.y", "z"])))
    assert [step.name for step in made.changes] == ["Z", "A"]


tokens = st.lists(st.sampled_from(["a", "b", "*", ">"]), min_size=1, max_size=4).map(
    lambda parts: ".".join(part for i, part in enumerate(parts) if part != ">" or i == len(parts) - 1) or "a"
)


@given(st.lists(tokens, max_size=8), tokens)
def test_subjects_that_overlap_are_found_without_comparing_all(subjects: list[str], text: str) -> None:
    taken = between.Taken()
    for number, each in enumerate(subjects):
        taken.add(str(number), [each])
    found = sorted(int(name) for name, _ in taken.matching(text))
    assert found == [i for i, each in enumerate(subjects) if intersect(each, text) is not None]


def test_the_fingerprint_is_of_the_change_and_of_what_was_seen_but_not_of_messages() -> None:
    wanted, alive = of(said("S", max_msgs=5)), stream("S")
    first = plan(wanted, there(alive)).fingerprint
    assert plan(wanted, there(replace(alive, messages=10, last=10))).fingerprint == first
    assert plan(of(said("S", max_msgs=6)), there(alive)).fingerprint != first
    assert plan(wanted, there(stream("S", max_bytes=7))).fingerprint != first
    assert plan(wanted, there(replace(alive, created="2026-01-02T00:00:00Z"))).fingerprint != first


def test_what_servers_write_into_metadata_is_no_change() -> None:
    assert (
        digest("t", {"metadata": {"_nats.ver": "1"}})
        == digest("t", {"metadata": {"_nats.ver": "2"}})
        == digest("t", {})
    )
    assert digest("t", {"metadata": {"a": "1"}}) != digest("t", {})


def test_a_shorter_max_age_takes_the_duplicate_window_along() -> None:
    made = plan(of(said("S", max_age=60_000_000_000)), there(stream("S", duplicate_window=120_000_000_000)))
    assert [change.field for change in made.changes[0].changes] == ["max_age", "duplicate_window"]
    assert made.changes[0].config is not None
    assert made.changes[0].config["duplicate_window"] == 60_000_000_000


def test_a_plan_tells_queries_that_lose_data_or_speed() -> None:
    follower = LiveConsumer(
        "spark", {"durable_name": "spark", "description": api.FOLLOWER, "metadata": {api.OWNER: "q"}}, "", 100
    )
    alive = replace(
        stream("S", consumers={"spark": follower}, allow_direct=True), messages=1000, last=1000, size=100_000
    )
    told = " ".join(plan(of(said("S", max_msgs=500, allow_direct=False)), there(alive)).changes[0].effects)
    assert "max_msgs = 500 deletes about 500 of 1,000 messages at once." in told
    assert "Penstock's query 'q' (consumer 'spark') has not acknowledged about 400 of them" in told
    assert "Penstock's queries on it get slower without 'allow_direct': 'q'." in told
    assert "stop the query first" in " ".join(effects.of_consumer_deletion(follower, alive, None))


def test_a_limit_that_deletes_messages_needs_a_permission_which_is_not_one_for_consumers() -> None:
    consumer = LiveConsumer("c", {"durable_name": "c", "ack_policy": "explicit", "deliver_policy": "all"}, "", 100)
    alive = replace(stream("S", consumers={"c": consumer}), messages=1000, last=1000, size=100_000)
    smaller = plan(of(said("S", {"c": {"deliver_policy": "new"}}, max_msgs=500)), there(alive))
    assert [step.name for step in smaller.refused([])] == ["S", "S/c"]
    assert [step.name for step in smaller.refused(["S"])] == ["S/c"]
    assert not smaller.refused(["S", "S/c"])
    assert not plan(of(said("S", max_msgs=500, discard="new")), there(alive)).refused([]), "nothing goes"
    assert not plan(of(said("S", max_msgs=5000)), there(alive)).refused([])
    anew = plan(of(said("S", {"c": {"deliver_policy": "new"}}, storage="memory")), there(alive))
    assert anew.refused([])[0].name == "S"
    assert not anew.refused(["S"]), "what goes with the stream is told there"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"deliver_policy": "all"}, "it gets about 100 messages again"),
        ({"deliver_policy": "new"}, "it never gets the 900 messages"),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 500}, "never gets what lies between 100 and that"),
        ({"deliver_policy": "last"}, "it may skip some of 900 messages"),
    ],
)
def test_a_consumer_that_is_created_anew_is_told_what_it_gets_again_or_never(
    config: dict[str, Any], words: str
) -> None:
    consumer = LiveConsumer("c", {"durable_name": "c", "ack_policy": "explicit"}, "", 100, 100, 900, 0)
    alive = replace(stream("S"), messages=1000, last=1000)
    assert words in " ".join(effects.of_consumer_deletion(consumer, alive, config))


def test_old_messages_are_counted_by_their_age() -> None:
    alive = replace(stream("S"), messages=100, last=100, first_time=10**15 - 7_200_000_000, last_time=10**15)
    told = " ".join(plan(of(said("S", max_age=HOUR)), there(alive)).changes[0].effects)
    assert "max_age = 1h deletes about 50 of 100 messages" in told


def test_what_is_not_known_is_written_into_extra_and_the_rest_at_its_default_is_left_out(tmp_path: Path) -> None:
    config = {
        "name": "S", "subjects": ["s"], "storage": "file", "max_age": HOUR, "duplicate_window": 120_000_000_000,
        "max_bytes": 1 << 30, "newer": {"a": [1, True]}, "metadata": {"_nats.ver": "3", "x": "${HOME}"},
        "consumer_limits": {}, "allow_direct": False,
    }  # fmt: skip
    consumer = {
        "durable_name": "c",
        "name": "c",
        "ack_policy": "explicit",
        "ack_wait": 10**9,
        "backoff": [10**9],
        "future": 1,
    }
    text = writing.toml([config], {"S": [consumer, {"name": "ephemeral"}]})
    assert text == (
        '[streams.S]\nsubjects = ["s"]\nmax_bytes = "1gb"\nmax_age = "1h"\nmetadata = { x = "$${HOME}" }\n'
        'extra = { newer = { a = [1, true] } }\n\n[streams.S.consumers.c]\nbackoff = ["1s"]\nextra = { future = 1 }\n'
    )
    (tmp_path / "s.toml").write_text(text)
    found = load([tmp_path / "s.toml"]).streams["S"]
    assert found.config["newer"] == {"a": [1, True]}
    assert found.config["metadata"] == {"x": "${HOME}"}
    assert found.consumers["c"].config["future"] == 1


def test_a_stream_that_a_bucket_cannot_say_stays_a_stream() -> None:
    made = buckets.stream_of(said("b", history=3))
    whole = {"name": "KV_b", **made.initial, **made.config}
    assert buckets.bucket_of(whole) == ("b", {"history": 3, "allow_direct": True})
    for change in ({"max_msgs": 5}, {"subjects": ["$KV.b.>", "x"]}, {"newer": 1}, {"max_msgs_per_subject": 65}):
        assert buckets.bucket_of(whole | change) is None
    assert buckets.bucket_of({**whole, "name": "b"}) is None


def test_what_nack_and_terraform_cannot_carry_is_told_by_name() -> None:
    until = {"pause_until": "2030-01-01T00:00:00Z", "deliver_policy": "by_start_sequence", "opt_start_seq": 5}
    by, where = {"name": "c", "deliver_subject": "x"}, {"api": "A", "deliver": "D"}
    config = {"subjects": ["s"], "allow_batched": True, "sealed": True, "no_ack": True, "max_age": 1_500_000_000}
    config["mirror"] = {"name": "O", "consumer": by, "external": where}
    declared = of(said("S", {"c": until}, **config), replace(said("GONE"), absent=True))
    written = nack.export(declared)
    assert set(written.left_out) == {
        "stream 'S': 'allow_batched'", "stream 'S': 'mirror.consumer'",
        "stream 'GONE': 'absent'; delete its resource instead",
    }  # fmt: skip
    assert "  # NACK has no 'allow_batched'." in written.text
    assert "deliverPolicy: byStartSequence" in written.text
    assert "externalApiPrefix: A" in written.text
    other = terraform.export(declared)
    assert set(other.left_out) == {
        "stream 'S': 'sealed'", "stream 'S': 'max_age in parts of a second'",
        "consumer 'c' of stream 'S': 'pause_until'", "stream 'GONE': 'absent'; take its resource away instead",
    }  # fmt: skip
    assert "ack = false" in other.text
    assert "stream_sequence = 5" in other.text


def test_defaults_of_nack_are_its_own(tmp_path: Path) -> None:
    text = (
        "apiVersion: jetstream.nats.io/v1beta2\nkind: Stream\nmetadata: {name: s}\nspec:\n  name: S\n  servers: [x]\n"
        "---\nkind: Consumer\nspec: {streamName: S, durableName: c, ackWait: 1ns, maxDeliver: 3}\n"
    )
    (tmp_path / "a.yaml").write_text(text)
    found = load([tmp_path / "a.yaml"]).streams["S"]
    assert found.config == {"storage": "memory"}
    assert found.consumers["c"].config == {"ack_policy": "none", "max_deliver": 3}
    (tmp_path / "b.yaml").write_text("kind: Deployment\nspec: {}\n---\nkind: Stream\nspec: {name: T, maxAg: 1h}\n")
    with pytest.raises(FileError, match=r"b.yaml:1: a Deployment is no Stream"):
        load([tmp_path / "b.yaml"])
    (tmp_path / "b.yaml").write_text("kind: Stream\nspec: {name: T, maxAg: 1h}\n")
    with pytest.raises(FileError, match=r"b.yaml:1: unknown field 'maxAg'"):
        load([tmp_path / "b.yaml"])


def test_yaml_without_its_package_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "a.yaml").write_text("kind: Stream\n")
    with pytest.raises(FileError, match="pip install pyyaml"):
        load([tmp_path / "a.yaml"])


def test_every_field_is_documented() -> None:
    for fields in (STREAM, CONSUMER, tuple(field for _, field in BUCKET)):
        assert len({each.name for each in fields}) == len(fields)
        rows = table(fields).splitlines()[2:]
        for each, row in zip(fields, rows, strict=True):
            assert row.startswith(f"| `{each.name}` | ")
            assert row.endswith(". |")


def test_old_messages_that_go_since_discard_is_old_need_a_permission() -> None:
    alive = replace(stream("S", max_msgs=10, max_bytes=-1, discard="new"), messages=500, last=500, size=50_000)
    made = plan(of(said("S", discard="old")), there(alive))
    assert [step.name for step in made.refused([])] == ["S"]
    assert "max_msgs = 10 deletes about 490 of 500 messages at once." in made.changes[0].effects
    roomy = replace(alive, config={**alive.config, "max_msgs": 500})
    assert not plan(of(said("S", discard="old")), there(roomy)).refused([])
    full = replace(alive, config={**alive.config, "max_msgs": -1, "max_bytes": 5_000})
    assert [step.name for step in plan(of(said("S", discard="old")), there(full)).refused([])] == ["S"]


@pytest.mark.parametrize(
    ("before", "after", "retention", "deletes"),
    [
        (["s.a", "s.b"], ["s.a"], "interest", True),
        (["s.a", "s.b"], ["s.a"], "limits", False),
        (["s.a", "s.b"], ["s.a"], "workqueue", False),
        (["s.a"], ["s.*"], "interest", False),
        ([], ["s.a"], "interest", True),
        (["s.a"], [], "interest", False),
        (["s.a"], ["s.b"], "interest", True),
    ],
)
def test_filters_that_leave_messages_without_interest_need_a_permission(
    before: list[str], after: list[str], retention: str, deletes: bool
) -> None:
    config = {"durable_name": "c", "ack_policy": "explicit", "filter_subjects": before}
    alive = stream("S", consumers={"c": LiveConsumer("c", config, "")}, retention=retention, subjects=["s.*"])
    wanted = of(said("S", {"c": {"filter_subjects": after}}))
    made = plan(wanted, there(replace(alive, messages=5, last=5)))
    assert [step.name for step in made.refused(["S"])] == ["S/c"] * deletes
    assert any("are deleted at once" in text for text in made.changes[0].effects) is deletes
    assert not plan(wanted, there(alive)).refused([]), "an empty stream loses nothing"


@pytest.mark.parametrize("name", ["A.B", "X Y", "A*", "A>", "a\\b", "a\x07", ""])
def test_a_name_of_the_command_line_that_no_stream_can_have_is_refused_without_asking_a_server(name: str) -> None:
    assert names.problem(name, "stream").startswith(f"a stream cannot be called {name!r}")
    for words in (["import", name], ["plan", "x.toml", "--allow-replace", name]):
        ran = CliRunner().invoke(app, ["jetstream", *words, "servers=nats://127.0.0.1:1"])
        assert ran.exit_code == 1
        assert "a stream cannot be called" in " ".join(ran.stderr.split())


def test_permissions_name_streams_and_consumers_and_mistyped_ones_are_told() -> None:
    assert not names.permission_problem("S/c")
    assert "a consumer cannot be called 'c.d'" in names.permission_problem("S/c.d")
    assert "a consumer cannot be called ''" in names.permission_problem("S/")
    assert list(names.not_planned(["ORDERS", "ORDRES"], {"ORDERS", "ORDERS/c"})) == [
        "--allow-replace ORDRES allows nothing: the files do not have that name. Did you mean 'ORDERS' or 'ORDERS/c'?"
    ]


def test_a_question_is_asked_on_stderr_and_never_of_a_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    commands._ask(2, in_json=False)
    captured = capsys.readouterr()
    assert (captured.out.strip(), "make 2 changes?" in captured.err) == ("", True)
    with pytest.raises(OptionError, match="with --json nobody is asked: --yes makes the changes"):
        commands._ask(2, in_json=True)


def test_resources_of_terraform_have_labels_of_their_own() -> None:
    written = terraform.export(of(said("A", {"B_C": {}}), said("A_B", {"C": {}}), said("A-B"), said("Aä"), said("Aö")))
    labels = [(each["type"], each["label"]) for each in written.resources]
    assert len(set(labels)) == len(labels) == 7
    assert ("jetstream_consumer", "A_B_C_2") in labels
    assert 'resource "jetstream_consumer" "A_B_C_2" {' in written.text


@pytest.mark.parametrize("kind", ["--nack", "--terraform"])
def test_an_export_in_json_has_each_resource(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[streams.A]\nsubjects = ["a"]\nallow_batched = true\n[streams.A.consumers.c]\n')
    ran = CliRunner().invoke(app, ["jetstream", "export", str(tmp_path / "a.toml"), kind, "--json"])
    told = json.loads(ran.stdout)
    kinds = [each["kind" if kind == "--nack" else "type"] for each in told["resources"]]
    assert kinds == (["Stream", "Consumer"] if kind == "--nack" else ["jetstream_stream", "jetstream_consumer"])
    target = tmp_path / "out.json"
    ran = CliRunner().invoke(app, ["jetstream", "export", str(tmp_path / "a.toml"), kind, "--json", "-o", str(target)])
    assert (ran.stdout, json.loads(target.read_text())) == ("", told)


def with_account(live: Live, **usage: Any) -> Live:
    return replace(live, account={"limits": {"max_storage": 1000, "max_memory": 1000}, **usage})


@pytest.mark.parametrize("told", [2**64 - 1, 2**64 - 4, None, "x"])
def test_an_account_whose_server_tells_less_than_nothing_has_promised_nothing(told: Any) -> None:
    assert api.reserved({"reserved_storage": told}, "file") == 0
    made = plan(of(said("S", max_bytes=1000)), with_account(there(), reserved_storage=told, storage=900))
    assert actions(made) == {"S": "create"}, "the server compares promises, and not what is used"
    made = plan(of(said("S", max_bytes=1001)), with_account(there(), reserved_storage=told))
    assert "1,001 bytes more for this stream are too much" in problems(made)


def test_what_is_deleted_frees_all_replicas_that_it_had() -> None:
    live_now = replace(there(stream("OLD", max_bytes=300, num_replicas=3)), is_clustered=True)
    declared = of(replace(said("OLD"), absent=True), said("NEW", max_bytes=300, num_replicas=3))
    assert actions(plan(declared, with_account(live_now, reserved_storage=900))) == {"OLD": "delete", "NEW": "create"}


def test_more_replicas_of_the_same_max_bytes_are_counted() -> None:
    live_now = replace(there(stream("S", max_bytes=400)), is_clustered=True)
    made = plan(of(said("S", num_replicas=3)), with_account(live_now, reserved_storage=400))
    assert "of which 400 bytes are promised to streams: 800 bytes more for this stream are too much" in problems(made)
    fewer = replace(there(stream("S", max_bytes=300, num_replicas=3)), is_clustered=True)
    made = plan(of(said("S", num_replicas=1, max_bytes=900)), with_account(fewer, reserved_storage=900))
    assert actions(made) == {"S": "update"}


def test_a_stream_that_moves_to_memory_is_counted_there_and_not_on_disk() -> None:
    alive = there(stream("S", max_bytes=400))
    wanted = of(said("S", storage="memory"))
    assert "600 bytes" not in problems(plan(wanted, with_account(alive, reserved_memory=600)))
    made = plan(wanted, with_account(alive, reserved_memory=601, reserved_storage=400))
    assert "1000 bytes of memory" in problems(made).replace(",", "")
    both = of(said("S", storage="memory"), said("T", max_bytes=1000))
    assert actions(plan(both, with_account(alive, reserved_storage=400))) == {"S": "replace", "T": "create"}


def test_tiers_of_an_account_are_counted_by_themselves_and_once() -> None:
    tiers = {f"R{count}": {"reserved_storage": 900, "limits": {"max_storage": 1000}} for count in (1, 3)}
    live_now = replace(there(stream("S", max_bytes=100)), is_clustered=True, account={"tiers": tiers})
    assert actions(plan(of(said("S", num_replicas=3)), live_now)) == {"S": "update"}
    assert "too much" in problems(plan(of(said("S", num_replicas=3, max_bytes=101)), live_now))


def test_the_number_of_servers_is_a_guess_and_makes_nothing_impossible() -> None:
    live_now = replace(there(stream("S")), is_clustered=True, servers=1)
    made = plan(of(said("N", num_replicas=3), said("S", num_replicas=3)), live_now)
    assert actions(made) == {"N": "create", "S": "update"}
    words = "The cluster seems to have 1 servers: the server refuses 3 replicas then."
    assert all(words in step.effects for step in made.changes)


def test_a_stream_that_did_not_answer_is_not_taken_for_one_that_is_not_there() -> None:
    made = plan(of(said("S", {"c": {}}, subjects=["s"])), replace(there(), unknown=("S",)))
    assert actions(made) == {"S": "impossible", "S/c": "impossible"}
    assert "did not answer: what it has is not known" in problems(made)
