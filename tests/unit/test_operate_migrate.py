"""What a migration decides without a server: filters, streams, consumers, sentences, and the verdict of a proof."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clients.nats import headers
from penstock.clients.nats.options import NatsOptions
from penstock.clients.nats.subjects import intersect, overlapping
from penstock.errors import ConnectError, Disconnected, OptionError, ProtocolError
from penstock.kit.retry import Retry
from penstock.operate.migrate import applying, declaration, listening, proposal, steps, subscribers, survey
from penstock.operate.migrate.durables import durables
from penstock.operate.migrate.filters import carve, grouped, is_within, watched, widest
from penstock.operate.migrate.listening import Listener
from penstock.operate.migrate.proof import Edges, Kept, Print, compare, fingerprint, of_message
from penstock.operate.migrate.proposal import Existing, Wish, World, propose
from penstock.operate.migrate.proving import Part, Proven
from penstock.operate.migrate.storage import Limits
from penstock.operate.migrate.subscribers import Seen, Server, Subscription
from penstock.operate.migrate.traffic import Figures, Heard, Message
from penstock.operate.migrate.verdicts import lines, unstored, without_stream


def heard(**subjects: int) -> Heard:
    """So many messages of 100 bytes on each subject in ten seconds; `_` is a dot, and a negative number is requests."""
    figures = {
        name.replace("_", "."): Figures(abs(count), 100 * abs(count), 100, requests=abs(count) if count < 0 else 0)
        for name, count in subjects.items()
    }
    return Heard(10.0, figures)


def client(number: int, name: str, subject: str, group: str = "") -> Subscription:
    return Subscription("s1", number, name, subject, group)


# --- filters ----------------------------------------------------------------------------------------------------------

TOKENS = st.sampled_from(["a", "b", "c"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
FILTERS = st.one_of(
    st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4).map(".".join),
    st.lists(st.sampled_from(["a", "b", "*"]), min_size=0, max_size=3).map(lambda words: ".".join([*words, ">"])),
)


@given(FILTERS, st.lists(SUBJECTS, max_size=8), st.lists(FILTERS, max_size=3))
@settings(max_examples=100, deadline=None)
def test_what_is_carved_is_inside_touches_nothing_avoided_and_loses_no_wanted_subject(
    wide: str, wanted: list[str], avoided: list[str]
) -> None:
    kept = carve(wide, wanted, avoided)
    assert overlapping(kept) is None
    for text in kept:
        assert is_within(text, wide)
        assert not any(intersect(text, other) for other in avoided)
    for subject in wanted:
        is_free = not any(intersect(subject, other) for other in avoided)
        if is_free and intersect(subject, wide):
            assert any(is_within(subject, text) for text in kept)


def test_a_filter_that_touches_nothing_stays_as_it_is() -> None:
    assert carve("orders.>", ["orders.eu"], ["rpc.add"]) == ["orders.>"]


def test_a_wildcard_in_front_is_always_replaced_as_it_would_take_the_servers_own_subjects() -> None:
    assert carve(">", ["orders.eu", "ping", "$JS.API.INFO", "_INBOX.x.1"], []) == ["orders.>", "ping"]
    assert carve("*.x", ["a.x", "b.y"], []) == ["a.x"]


def test_of_filters_that_cover_each_other_the_widest_stay() -> None:
    assert widest(["a.b", "a.*", "c", "a.>", "c"]) == ["c", "a.>"]


def test_applications_are_told_apart_by_the_first_token_or_by_the_second_where_the_first_is_shared() -> None:
    assert grouped(["a.>", "b.x", "b.y"], []) == {("a",): ["a.>"], ("b",): ["b.x", "b.y"]}
    assert grouped(["app.>"], ["app.orders.eu", "app.users.1", "app.ping"]) == {
        ("app", "orders"): ["app.orders.>"],
        ("app", "ping"): ["app.ping"],
        ("app", "users"): ["app.users.>"],
    }
    assert grouped(["app.*.*.*"], ["app.a.b.c", "app.d.b.c"]) == {
        ("app", "a"): ["app.a.*.*"],
        ("app", "d"): ["app.d.*.*"],
    }


# --- what was heard ---------------------------------------------------------------------------------------------------


def test_answers_and_inboxes_are_not_counted_and_requests_are() -> None:
    found = Heard(1.0)
    found.take(
        [
            Message(b"rpc.add", b"my.inbox.1", b"", b"1"),
            Message(b"my.inbox.1", b"", b"", b"2"),  # with an inbox of its own name
            Message(b"_INBOX.abc.1", b"", b"", b"2"),
            Message(b"$JS.API.INFO", b"_INBOX.abc.2", b"", b""),
            Message(b"orders.eu", b"", b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n", b"abc"),
        ]
    )
    assert list(found.subjects) == ["rpc.add", "orders.eu"]
    assert found.requested() == {"rpc.add": Figures(1, 1, 1, 1, 0, 0)}
    assert found.subjects["orders.eu"] == Figures(1, 31, 31, 0, 1, 1)
    assert found.all().messages == 2


# --- who subscribes ---------------------------------------------------------------------------------------------------


def test_subscriptions_of_our_account_that_match_are_found_with_names_that_can_be_shown() -> None:
    page = {
        "connections": [
            {"cid": 5, "name": "billing\x1b[2J token=abc", "account": "A", "subscriptions_list_detail": [
                {"subject": "orders.eu", "qgroup": "workers"}, {"subject": "_INBOX.x.*"}, {"subject": "other"}]},
            {"cid": 6, "account": "B", "subscriptions_list_detail": [{"subject": "orders.eu"}]},
            {"cid": 7, "subscriptions_list_detail": [{"subject": "*.eu"}, {"subject": ""}, 17]},
            "nonsense",
        ]
    }  # fmt: skip
    found = list(subscribers.parse_connections("s1", page, ["orders.>"], "A"))
    assert found == [
        Subscription("s1", 5, "billing [2J token=***", "orders.eu", "workers"),
        Subscription("s1", 7, "", "*.eu", ""),
    ]
    assert len(list(subscribers.parse_connections("s1", page, ["orders.>"], None))) == 3


def test_a_page_that_is_no_object_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no object"):
        list(subscribers.parse_connections("s1", ["x"], ["orders.>"], None))


def test_what_a_server_says_of_itself_is_read_also_where_jetstream_is_off() -> None:
    server = subscribers.parse_server({"server_name": "n1", "version": "2.15.1", "max_payload": 1048576}, {})
    assert server == Server("n1", "2.15.1", 1048576, None, 0, None, 0, 1)
    varz = {"jetstream": {"config": {"max_storage": 10, "max_memory": 5}, "stats": {"storage": 3, "memory": 1}}}
    server = subscribers.parse_server(varz, {"meta_cluster": {"cluster_size": 3}})
    assert (server.storage, server.storage_used, server.memory, server.cluster_size) == (10, 3, 5, 3)


def test_services_tell_what_they_answer_and_nonsense_is_no_service() -> None:
    assert survey.endpoints(b'{"name": "calc", "endpoints": [{"subject": "calc.add"}]}') == {"calc.add": "calc"}
    assert survey.endpoints(b"oops") == survey.endpoints(b'{"endpoints": 7}') == {}


def test_limits_of_an_account_are_those_of_its_largest_tier() -> None:
    tier = {"storage": 5, "reserved_storage": 7, "limits": {"max_storage": 100, "max_streams": 3}}
    assert survey.account_limits(tier) == Limits(100, 7, None, 0, 3, False)
    assert survey.account_limits({"reserved_storage": 2**64 - 1, "storage": 3}).storage_used == 3  # as 2.10 says it
    assert survey.account_limits({"tiers": {"R1": tier, "R3": {"limits": {"max_storage": -1}}}}).storage is None


# --- streams ----------------------------------------------------------------------------------------------------------


def test_one_stream_takes_all_and_is_called_as_its_subjects_begin() -> None:
    found = propose(Wish(("orders.>",)), World(heard(orders_eu=100), servers=3))
    assert found.streams == {
        "ORDERS": {
            "subjects": ["orders.>"], "storage": "file", "num_replicas": 3, "max_age": "7d", "duplicate_window": "2m",
            "allow_direct": True,
        }
    }  # fmt: skip
    assert found.daily["ORDERS"] == (100 + 34 + len("orders.eu")) * 10 * 86_400


def test_a_subject_with_requests_is_left_out_and_the_others_stay() -> None:
    found = propose(Wish(("app.>",)), World(heard(app_orders_eu=10, app_orders_us=10, app_rpc_add=-3)))
    assert found.filters == ["app.orders.>"]
    assert [each.subject for each in found.left_out] == ["app.rpc.add"]
    assert "with its ack" in " ".join(steps.left_out(found.left_out))
    assert any("'app.>' becomes app.orders.>" in remark for remark in found.remarks)


def test_a_responder_that_takes_many_subjects_is_left_out_as_a_whole() -> None:
    seen = Seen((), (client(1, "calc", "app.rpc.*", "q"), client(2, "audit", "app.>")))
    world = World(heard(app_orders_eu=10, app_rpc_add=-3), seen, True)
    found = propose(Wish(("app.>",)), world)
    assert [each.subject for each in found.left_out] == ["app.rpc.*"]
    assert found.filters == ["app.orders.>"]
    assert list(found.consumers["APP"]) == ["audit"]


def test_a_service_that_nobody_asked_yet_is_left_out() -> None:
    found = propose(Wish(("app.>",)), World(heard(app_a=1), services={"app.calc": "calc"}))
    assert [each.subject for each in found.left_out] == ["app.calc"]
    assert found.filters == ["app.a"]


def test_with_no_ack_requests_are_stored_too_and_what_that_means_is_said() -> None:
    found = propose(Wish(("app.>",), no_ack=True), World(heard(app_rpc=-3)))
    assert found.streams["APP"]["subjects"] == ["app.>"]
    assert found.streams["APP"]["no_ack"] is True
    assert any("times out" in remark for remark in found.remarks)
    assert "cannot wait for acks" in steps.programs(found)[0]


def test_what_a_stream_has_already_is_not_given_to_another_one() -> None:
    world = World(heard(orders_eu=-5, orders_us=5), existing=(Existing("EU", ("orders.eu",)), Existing("X", ("x",))))
    found = propose(Wish(("orders.>",)), world)
    assert found.filters == ["orders.us"]
    assert found.captured == (Existing("EU", ("orders.eu",)),)
    assert not found.left_out  # who publishes with a reply there waits for an ack
    again = propose(Wish(("orders.eu",)), world)
    assert not again.streams


def test_names_of_streams_are_legal_and_free() -> None:
    world = World(heard(), existing=(Existing("ORDERS", ("elsewhere",)),))
    assert list(propose(Wish(("orders.>",)), world).streams) == ["ORDERS_2"]
    assert list(propose(Wish(("a.>", "b.>")), World(heard())).streams) == ["EVENTS"]
    assert list(propose(Wish(("a/b c.>".replace(" ", "~"),)), World(heard())).streams) == ["A_B_C"]
    named = propose(Wish(("a.>", "b.>"), "per-prefix", "NEW"), World(heard()))
    assert {name: config["subjects"] for name, config in named.streams.items()} == {"NEW_A": ["a.>"], "NEW_B": ["b.>"]}


@pytest.mark.parametrize(
    ("subjects", "says"),
    [(("a.>", "a.b"), "overlap"), (("$JS.API.>",), "of the server"), (("_INBOX.>",), "inbox")],
)
def test_subjects_that_cannot_be_stored_are_refused(subjects: tuple[str, ...], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        propose(Wish(subjects), World(heard()))


def test_a_server_and_an_account_that_are_too_small_are_told() -> None:
    seen = Seen((Server("n1", "2.15.1", 1 << 20, 1 << 30, 0, None, 0, 1),))
    limits = Limits(storage=1 << 28, storage_used=1 << 27, streams=0, needs_max_bytes=True)
    found = propose(Wish(("orders.>",)), World(heard(orders_eu=1000), seen, True, limits=limits))
    told = " ".join(found.remarks)
    assert "server 'n1' has 1.0 GB left in file storage" in told
    assert "the account has 128.0 MB left" in told
    assert "may have 0 streams" in told
    assert found.streams["ORDERS"]["max_bytes"].endswith("mb")
    small = propose(Wish(("orders.>",)), World(heard(orders_eu=1), seen, True))
    assert not any("left in file storage" in remark for remark in small.remarks)


def test_a_subscription_on_which_nothing_came_may_answer_requests_and_is_left_out_unless_it_is_named() -> None:
    seen = Seen((), (client(1, "calc", "orders.sum"), client(2, "audit", "orders.>")))
    quiet = propose(Wish(("orders.>",)), World(heard(orders_eu=1), seen, True))
    assert [each.subject for each in quiet.left_out] == ["orders.sum"]
    assert quiet.streams["ORDERS"]["subjects"] == ["orders.eu"]
    named = propose(Wish(("orders.eu", "orders.sum")), World(heard(orders_eu=1), seen, True))
    assert not named.left_out
    assert named.streams["ORDERS"]["subjects"] == ["orders.eu", "orders.sum"]


def test_what_cannot_be_known_is_said() -> None:
    seen = Seen((), (client(1, "calc", "orders.sum"),))
    silent = propose(Wish(("orders.eu", "orders.sum")), World(heard(orders_eu=1), seen, True))
    assert any("nothing came on 1 subject that somebody subscribes to (orders.sum)" in each for each in silent.remarks)
    blind = propose(Wish(("orders.>",)), World(replace(heard(), interruptions=["gone"])))
    told = " ".join(blind.remarks)
    assert "without --monitoring" in told
    assert "listening was interrupted: gone" in told
    assert "nothing was published" in told


def test_a_declaration_of_somebody_else_that_would_answer_requests_is_refused() -> None:
    world = World(heard(app_rpc=-3))
    with pytest.raises(OptionError, match=r"'app\.rpc', and of 3 messages on it, 3 had a reply subject.*no_ack = true"):
        proposal.given({"APP": {"subjects": ["app.>"]}}, {}, world)
    found = proposal.given({"APP": {"subjects": ["app.>"], "no_ack": True}}, {"APP": {"a": {}}}, world)
    assert found.filters == ["app.>"]
    assert "nats consumer info APP a" in " ".join(steps.programs(found))


# --- consumers --------------------------------------------------------------------------------------------------------

STREAM: dict[str, dict[str, Any]] = {"ORDERS": {"subjects": ["orders.>"]}}


def test_a_queue_group_is_a_durable_that_takes_what_the_group_took() -> None:
    members = [client(n, f"worker-{n}", "orders.eu.>", "workers") for n in range(3)]
    found, _ = durables(STREAM, members)
    assert found == {"ORDERS": {"workers": {"ack_policy": "explicit", "filter_subjects": ["orders.eu.>"]}}}


def test_groups_of_the_same_name_on_other_subjects_are_others_unless_they_have_the_same_members() -> None:
    apart, _ = durables(STREAM, [client(1, "", "orders.a", "q"), client(2, "", "orders.b", "q")])
    assert list(apart["ORDERS"]) == ["q-orders-a", "q-orders-b"]
    together, _ = durables(STREAM, [client(1, "", "orders.a", "q"), client(1, "", "orders.b", "q")])
    assert together["ORDERS"]["q"]["filter_subjects"] == ["orders.a", "orders.b"]


def test_a_subscriber_with_a_name_of_its_own_gets_a_durable_without_a_filter_where_it_takes_all() -> None:
    found, remarks = durables(STREAM, [client(1, "audit: all", ">")])
    assert found == {"ORDERS": {"audit_all": {"ack_policy": "explicit"}}}
    assert remarks == []


def test_connections_of_one_name_without_a_group_share_no_durable_as_each_gets_every_message() -> None:
    found, remarks = durables(STREAM, [client(1, "billing", "orders.eu"), client(2, "billing", "orders.eu")])
    assert found == {}
    assert "2 connections are called 'billing', and each gets every message of orders.eu" in remarks[0]


def test_those_without_a_name_and_those_behind_a_leaf_node_are_told() -> None:
    leaf = Subscription("s1", 0, "behind leaf node x", "orders.us", "", "leaf node")
    found, remarks = durables(STREAM, [client(1, "", "orders.eu"), leaf])
    assert found == {}
    assert "leaf node x" in remarks[0]
    assert "1 connection without a name" in remarks[1]


def test_subscriptions_that_overlap_get_no_durable_as_filters_of_a_consumer_cannot() -> None:
    stream = {"S": {"subjects": ["orders.>"]}}
    found, remarks = durables(stream, [client(1, "odd", "orders.*.x"), client(1, "odd", "orders.y.*")])
    assert found == {}
    assert "overlap" in remarks[0]


def test_the_declaration_is_toml_that_says_the_same() -> None:
    seen = Seen((), (client(1, "audit", "orders.>"), client(2, "", "orders.eu", 'odd "name"')))
    found = propose(Wish(("orders.>",)), World(heard(orders_eu=5), seen, True))
    said = tomllib.loads(declaration.text(found, "'orders.>'"))
    consumers = said["streams"]["ORDERS"].pop("consumers")
    assert said["streams"] == found.streams
    assert consumers == found.consumers["ORDERS"]
    assert consumers["odd_name"]["filter_subjects"] == ["orders.eu"]


def test_a_subject_that_looks_like_a_variable_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    odd = "app.${MY_SECRET}"
    world = World(Heard(1.0, {odd: Figures(1, 1, 1), "app.rpc": Figures(1, 1, 1, requests=1)}))
    found = propose(Wish(("app.>",)), replace(world, seen=Seen((), (client(1, "audit", odd),)), has_monitoring=True))
    stream = applying.loaded(declaration.text(found, "'app.>'")).streams["APP"]
    assert found.filters == [odd]
    assert stream.config["subjects"] == [odd]
    assert list(stream.consumers) == ["audit"]


def test_with_a_file_it_listens_to_all_that_the_files_streams_would_take(tmp_path: Path) -> None:
    file = tmp_path / "streams.toml"
    file.write_text(
        '[streams.A]\nsubjects = ["orders.eu", "rpc.>"]\n[streams.plain]\n[streams.GONE]\nabsent = true\n'
        "[streams.COPY.mirror]\nname = 'A'\n[buckets.settings]\nhistory = 1\n"
    )
    streams = applying.streams(applying.loaded_file(file))
    taken = [text for config in streams.values() for text in config.get("subjects") or ()]
    assert "GONE" not in streams
    assert watched(["orders.>"], taken) == ["orders.>", "rpc.>", "plain"]


# --- the proof --------------------------------------------------------------------------------------------------------


def message(number: int, subject: str = "a", identity: str = "") -> Print:
    pairs = [("Nats-Msg-Id", identity.encode())] if identity else []
    return fingerprint(subject.encode(), pairs, b"%d" % number)


def stored(*numbers: int, first: int = 1, subject: str = "a") -> list[Kept]:
    return [Kept(first + i, message(number, subject)) for i, number in enumerate(numbers)]


def test_the_print_of_a_message_is_the_same_from_its_block_and_from_its_fields() -> None:
    block = b"NATS/1.0\r\nNats-Msg-Id: 7\r\nA:  b \r\n\r\n"
    pairs = headers.fields(block)[2]
    assert of_message(b"s", block, b"x") == fingerprint(b"s", pairs, b"x")
    assert of_message(b"s", block, b"x").id == b"7"
    others = [of_message(b"t", block, b"x"), of_message(b"s", b"", b"x"), of_message(b"s", block, b"y")]
    assert len({each.checksum for each in [of_message(b"s", block, b"x"), *others]}) == 4


def test_equal_sides_hold_whatever_is_outside_of_the_bounds() -> None:
    got = [message(n) for n in (3, 4, 5, 6, 7)]
    verdict = compare("S", got, 4, stored(1, 2, 3, 4, 5, 6, 7), 3, 6)
    assert verdict.holds
    assert (verdict.stored, verdict.got, verdict.disordered, verdict.removed) == (3, 4, 0, 0)


def test_a_message_that_was_got_and_is_not_stored_is_found() -> None:
    verdict = compare("S", [message(1), message(2, "b.c"), message(3)], 3, stored(1, 3), 0, 2)
    assert (verdict.lacking, verdict.not_stored, verdict.unheard) == (1, ("b.c",), 0)
    assert not verdict.holds


def test_a_message_that_is_stored_and_was_not_got_is_found_by_its_sequence() -> None:
    verdict = compare("S", [message(1), message(3)], 2, stored(1, 2, 3, first=11), 10, 13)
    assert (verdict.unheard, verdict.not_got, verdict.lacking) == (1, (12,), 0)


def test_what_came_once_and_is_stored_twice_is_no_match() -> None:
    assert compare("S", [message(1)], 1, stored(1, 1), 0, 2).not_got == (2,)
    assert compare("S", [message(1), message(1)], 2, stored(1), 0, 1).lacking == 1


def test_a_message_sent_again_with_an_id_that_the_stream_has_is_not_lost() -> None:
    again = [message(1, identity="x"), message(1, identity="x")]
    kept = [Kept(1, message(1, identity="x"))]
    verdict = compare("S", again, 2, kept, 0, 1)
    assert verdict.holds
    assert verdict.repeated == 1
    assert compare("S", again[:1], 1, [], 0, 0).lacking == 1
    assert compare("S", again[:1], 1, [], 0, 0, earlier=kept).repeated == 1


def test_another_order_is_seen_on_its_subject_only_and_equal_messages_confuse_nothing() -> None:
    got = [message(1), message(2), message(9, "b"), message(3)]
    kept = [*stored(2, 1, 3), Kept(4, message(9, "b"))]
    assert compare("S", got, 4, kept, 0, 4).disordered == 1
    heartbeats = [message(0), message(1), message(0), message(2)]
    assert compare("S", heartbeats, 4, stored(0, 1, 0, 2), 1, 4, edges=Edges(1, 1, 4, 4)).disordered == 0


def test_sequences_without_a_message_are_counted_and_excuse_as_many_that_are_lacking() -> None:
    verdict = compare("S", [message(1)], 1, stored(1), 0, 5)
    assert (verdict.removed, verdict.holds, verdict.whole) == (4, True, False)
    got = [message(n) for n in range(1, 8)]
    kept = [Kept(5, message(5))]  # of five that it gave, one is left; two more were never stored
    verdict = compare("S", got, 7, kept, 0, 5, before=0)
    assert (verdict.lacking, verdict.removed, verdict.lost, verdict.holds) == (6, 4, 2, False)
    expired = compare("S", got[:5], 5, kept, 0, 5, before=0)
    assert (expired.lacking, expired.lost, expired.holds, expired.whole) == (4, 0, True, False)
    said = " ".join(lines(Proven([Part(1.0, [expired])])))
    assert "proven in part" in said
    assert "4 sequences have no message any more" in said
    assert "NOT PROVEN" not in said


def test_an_equal_message_that_is_stored_behind_the_bounds_does_not_stand_for_a_lost_one() -> None:
    ticks = [message(0)] * 20
    # Ten came between the bounds, and the stream has seven of those, and ten of later.
    lost = compare("S", ticks, 10, stored(*[0] * 17), 0, 7, edges=Edges(0, 0, 10, 10), last=7)
    assert (lost.lacking, lost.doubtful, lost.holds) == (3, 0, False)
    # Two more were stored shortly after the end: they may have been on their way.
    unsure = compare("S", ticks, 10, stored(*[0] * 17), 0, 7, edges=Edges(0, 0, 10, 10), last=9)
    assert (unsure.lacking, unsure.doubtful) == (1, 2)
    all_unsure = compare("S", ticks, 10, stored(*[0] * 17), 0, 7, edges=Edges(0, 0, 10, 10), last=17)
    assert (all_unsure.lacking, all_unsure.doubtful, all_unsure.holds, all_unsure.whole) == (0, 3, True, False)
    assert "of 3 messages it cannot be told" in " ".join(lines(Proven([Part(1.0, [all_unsure])])))


def test_equal_messages_that_come_while_a_bound_is_taken_leave_a_doubt() -> None:
    ticks = [message(0)] * 12
    quiet = compare("S", ticks, 10, stored(*[0] * 10), 0, 10, edges=Edges(0, 0, 10, 10))
    assert (quiet.holds, quiet.whole) == (True, True)
    busy = compare("S", ticks, 10, stored(*[0] * 10), 0, 10, edges=Edges(0, 1, 10, 12))
    assert (busy.holds, busy.whole, busy.doubtful) == (True, False, 2)
    # What is there once is known by its print, wherever it comes and is stored.
    single = compare("S", [message(n) for n in range(12)], 10, stored(*range(12)), 0, 9, edges=Edges(0, 1, 10, 12))
    assert (single.holds, single.whole) == (True, True)


def test_an_equal_message_that_came_before_the_bounds_does_not_stand_for_one_that_never_came() -> None:
    verdict = compare("S", [message(0)] * 3, 3, stored(0, 0, 0, 0, 0, 0), 2, 6, edges=Edges(0, 0, 3, 3))
    assert (verdict.unheard, verdict.not_got) == (1, (6,))
    late = compare("S", [message(0)] * 4, 3, stored(0, 0, 0, 0, 0, 0), 2, 6, edges=Edges(0, 0, 3, 3))
    assert (late.unheard, late.doubtful) == (0, 1)


def test_an_id_excuses_a_message_within_the_duplicate_window_only() -> None:
    first, other, again = message(1, identity="x"), message(2), message(3, identity="x")
    kept = [Kept(1, first, 100.0), Kept(2, other, 100.5)]

    def verdict(seconds: float, ahead: float = 0.0) -> tuple[int, int, int]:
        arrivals = [100.0 + ahead, 100.5 + ahead, 100.0 + ahead + seconds]
        found = compare("S", [first, other, again], 3, kept, 0, 2, arrivals=arrivals, window=2.0)
        return found.repeated, found.doubtful, found.lacking

    assert verdict(1.9) == (1, 0, 0)
    assert verdict(2.1) == (0, 1, 0)
    assert verdict(2.5) == (0, 0, 1)
    # The clock of the server is another one.
    assert verdict(1.9, ahead=-3600) == (1, 0, 0)
    assert verdict(2.5, ahead=3600) == (0, 0, 1)


def test_a_message_is_not_excused_by_an_id_that_was_stored_after_it() -> None:
    lost, other, later = message(1, identity="x"), message(2), message(3, identity="x")
    kept = [Kept(1, other, 100.0), Kept(2, later, 101.0)]
    found = compare("S", [lost, other, later], 3, kept, 0, 2, arrivals=[99.0, 100.0, 101.0], window=5.0)
    assert (found.lacking, found.repeated) == (1, 0)


def test_a_message_that_is_sent_again_until_it_is_stored_is_not_lost() -> None:
    tried, other = message(1, identity="x"), message(2)
    kept = [Kept(1, other, 100.0), Kept(2, tried, 103.0)]
    found = compare("S", [tried, other, tried, tried], 4, kept, 0, 2, arrivals=[99.0, 100.0, 101.0, 103.0], window=5.0)
    assert (found.lacking, found.doubtful, found.repeated) == (0, 0, 2)


def test_without_a_message_to_compare_clocks_by_an_old_id_leaves_a_doubt() -> None:
    found = compare(
        "S", [message(3, identity="x")], 1, [], 0, 0, arrivals=[500.0], window=2.0,
        earlier=[Kept(1, message(1, identity="x"), 100.0)],
    )  # fmt: skip
    assert (found.lacking, found.doubtful) == (0, 1)


def test_subjects_that_were_heard_and_that_no_stream_takes_make_a_proof_partial() -> None:
    heard_ones = ["app.orders.x", "app.other.y", "app.rpc.add", "elsewhere"]
    assert unstored(heard_ones, ["app.>"], ["app.orders.>"], ["app.rpc.*"]) == ["app.other.y"]
    verdict = compare("S", [message(1)], 1, stored(1), 0, 1)
    assert Proven([Part(1.0, [verdict])]).whole
    proven = Proven([Part(1.0, [verdict])], without_stream=[f"a.{n}" for n in range(7)])
    assert (proven.holds, proven.whole) == (True, False)
    assert "no stream takes a.0, a.1, a.2, a.3, a.4 and 2 others: " in " ".join(lines(proven))
    assert "a.4 and 1 other:" in without_stream([f"a.{n}" for n in range(6)])
    assert without_stream(["a"]).startswith("no stream takes a: ")


@given(st.lists(st.integers(0, 5), max_size=30), st.data())
@settings(max_examples=60, deadline=None)
def test_one_message_taken_away_from_either_side_is_always_noticed(numbers: list[int], data: st.DataObject) -> None:
    got, kept = [message(n) for n in numbers], stored(*numbers)
    assert compare("S", got, len(got), kept, 0, len(kept)).holds
    if numbers:
        at = data.draw(st.integers(0, len(numbers) - 1))
        assert compare("S", got[:at] + got[at + 1 :], len(got) - 1, kept, 0, len(kept)).unheard == 1
        assert compare("S", got, len(got), kept[:at] + kept[at + 1 :], 0, len(kept)).lacking == 1


def test_a_proof_with_an_interruption_is_not_whole_and_says_so() -> None:
    verdict = compare("S", [message(1)], 1, stored(1), 0, 1)
    proven = Proven([Part(1.0, [verdict], interruption="closed"), Part(2.0, [verdict], unasked=["nats://x"])])
    said = " ".join(lines(proven))
    assert (proven.holds, proven.whole, proven.messages) == (True, False, 2)
    assert "interrupted (closed)" in said
    assert "part 2" in said
    assert "nats://x" in said


def test_a_proof_that_ends_as_there_are_too_many_messages_is_not_whole_and_says_so() -> None:
    verdict = compare("S", [message(1)], 1, stored(1), 0, 1)
    proven = Proven([Part(1.0, [verdict], interruption="4,000,000 messages came", is_full=True)])
    said = " ".join(lines(proven))
    assert (proven.holds, proven.whole) == (True, False)
    assert "ended before its time, as 4,000,000 messages came and more do not fit into memory" in said
    assert "our own subscription was interrupted" not in said


def test_a_proof_of_nothing_proves_nothing() -> None:
    proven = Proven([Part(1.0, [compare("S", [], 0, [], 5, 5)])])
    assert not proven.whole
    assert "nothing was published, so nothing is proven" in next(lines(proven))


def test_what_is_missing_is_said_with_examples() -> None:
    proven = Proven([Part(1.0, [compare("S", [message(7, "a.b")], 1, stored(1, 2), 0, 2)])])
    said = "\n".join(lines(proven))
    assert "NOT PROVEN. The stream lacks 1 of 1 messages" in said
    assert "not stored: on a.b" in said
    assert "not delivered: sequences 1, 2" in said


def test_going_back_names_the_command_for_each_stream_and_what_is_lost() -> None:
    said = "\n".join(steps.back(["ORDERS", "odd name"]))
    assert "nats stream rm ORDERS --force" in said
    assert "nats stream rm 'odd name' --force" in said
    assert "Lost are then all stored messages" in said
    assert steps.back([]) == []


# --- listening --------------------------------------------------------------------------------------------------------


class Deaf:
    """A connection that opens, and is lost at the first look."""

    there: ClassVar[set["Deaf"]] = set()

    def __init__(self, options: NatsOptions):
        self.there.add(self)

    def send(self, data: bytes) -> None:
        """Take it."""

    def subscribe(self) -> tuple[int, str]:
        return 1, "_INBOX.x.1"

    def flush(self, take: object) -> None:
        raise Disconnected("gone")

    def close(self) -> None:
        self.there.discard(self)


def test_a_subscription_that_fails_again_and_again_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "Connection", Deaf)
    listener = Listener(NatsOptions.parse("jetstream", {"servers": "nats://127.0.0.1:1"}), ["a"], lambda came: None)
    with pytest.raises(ConnectError, match="failed 4 times"):
        Retry("listening", attempts=3, sleep=lambda seconds: None).run(listener.open)
    assert Deaf.there == set()
