"""The parts of `penstock jetstream bench` that need no server: the matrix, the arithmetic, and the report."""

import json
import math
import os
import re
import sys
import xml.etree.ElementTree as ET
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from penstock.cli import app
from penstock.clients.nats import wire
from penstock.clients.nats.options import NatsOptions
from penstock.errors import ConnectError, DataLossError, OptionError
from penstock.operate.bench import (
    beside,
    consuming,
    figures,
    machine,
    matrix,
    pacing,
    page,
    publishing,
    report,
    run,
    soak,
    streams,
)
from penstock.operate.bench.jobs import Place, Told

ROOT = Path(__file__).parent.parent.parent
HOSTILE = '<script>alert("x")</script> | `a` \x1b[31m'


# The matrix.


def test_one_dimension_is_varied_at_a_time_and_then_the_cluster() -> None:
    found = matrix.scenarios()
    assert found[0].name == matrix.BASELINE
    changed = [each.name.count("=") for each in found[1:]]
    alone = sum(len(each.values) - 1 for each in matrix.DIMENSIONS)
    assert changed == [1] * alone + [2, 2, 3]
    assert len({each.name for each in found}) == len(found)


def test_a_full_matrix_has_every_combination_that_makes_sense() -> None:
    found = matrix.scenarios(full=True)
    product = math.prod(len(each.values) for each in matrix.DIMENSIONS)
    senseless = product - len(found)
    assert 0 < senseless < product
    assert not [each for each in found if each.cipher != "none" and (each.storage == "memory" or each.clustered)]
    assert len(set(found)) == len(found)


def test_a_quick_matrix_is_a_part_of_the_whole() -> None:
    whole = {each.name for each in matrix.scenarios()}
    quick = {each.name for each in matrix.scenarios(quick=True)}
    assert quick < whole


def test_only_keeps_what_matches_and_refuses_what_matches_nothing() -> None:
    found = matrix.scenarios()
    assert [each.name for each in matrix.only(found, "^size=1")] == ["size=16", "size=1024", "size=16384"]
    with pytest.raises(OptionError, match=r"no scenario matches --only 'nope'\. There are: baseline"):
        matrix.only(found, "nope")
    with pytest.raises(OptionError, match="no regular expression"):
        matrix.only(found, "(")


@pytest.mark.parametrize(
    ("able", "name", "why"),
    [
        (matrix.Able((2, 11), True, True), "publish=atomic", "needs server 2.12 or later, and this is 2.11"),
        (matrix.Able((2, 13), True, True), "publish=fast", "needs server 2.14"),
        (matrix.Able((2, 15), False, True), "cipher=aes", "a client cannot change"),
        (matrix.Able((2, 15), True, False), "replicas=3", "cluster of three"),
        (matrix.Able((2, 15), True, True, 8192), "size=16384", "at most 8,192 bytes"),
    ],
)
def test_what_a_server_cannot_run_is_left_out_with_a_reason(able: matrix.Able, name: str, why: str) -> None:
    kept, left_out = matrix.runnable(matrix.scenarios(), able)
    assert why in left_out[name]
    assert name not in {each.name for each in kept}
    assert kept[0].name == matrix.BASELINE


def test_what_is_written_counts_every_copy() -> None:
    one, three = matrix.Scenario.of({}), matrix.Scenario.of({"replicas": "3"})
    assert matrix.most_written([one, three], 1 << 20)[0] == 3 * matrix.most_written([one], 1 << 20)[0]
    assert matrix.most_written([one], 1 << 20)[1] == 0


# Streams that are ours.


def config(**metadata: Any) -> dict[str, Any]:
    return {"name": "PENSTOCK_BENCH_abc", "metadata": metadata}


def test_a_stream_without_our_mark_is_never_ours() -> None:
    mine = streams.mark("abc", 0)
    later = 4e9
    assert streams.judged({"name": "ORDERS", "metadata": mine}, later) is None
    assert streams.judged({"name": "PENSTOCK_BENCH_abc"}, later) is None
    assert streams.judged({"name": "PENSTOCK_BENCH_abc", "metadata": {"owner": "x"}}, later) is None


def test_a_leftover_is_dead_when_its_process_or_its_time_is_over() -> None:
    mine = streams.mark("abc", 0)
    assert streams.judged(config(**mine), 0) == streams.Leftover(
        "PENSTOCK_BENCH_abc", "abc", False, f"process {mine[streams.PROCESS]} of this machine still runs"
    )
    over = streams.judged(config(**mine), 4e9)
    assert over is not None
    assert over.dead
    ended = streams.judged(config(**mine | {streams.PROCESS: "999999999"}), 0)
    assert ended is not None
    assert ended.dead
    elsewhere = streams.judged(config(**mine | {streams.HOST: "far", streams.PROCESS: "999999999"}), 0)
    assert elsewhere is not None
    assert not elsewhere.dead
    unclear = streams.judged(config(**mine | {streams.UNTIL: "soon"}), 4e9)
    assert unclear is not None
    assert not unclear.dead


@pytest.mark.parametrize(
    ("answer", "storage", "copies", "room"),
    [
        ({"limits": {"max_storage": -1}, "storage": 5}, "file", 1, None),
        ({"limits": {"max_storage": 100, "max_memory": 7}, "storage": 40}, "file", 1, 60),
        ({"limits": {"max_storage": 100, "max_memory": 7}, "storage": 40}, "memory", 1, 7),
        ({"limits": {"max_storage": 10}, "storage": 40}, "file", 1, 0),
        ({"tiers": {"R1": {"limits": {"max_storage": 9}, "storage": 1}}}, "file", 1, 8),
        ({"tiers": {"R1": {"limits": {"max_storage": 9}}}}, "file", 3, 0),
    ],
)
def test_the_room_of_an_account(answer: dict[str, Any], storage: str, copies: int, room: int | None) -> None:
    assert streams.room(answer, storage, copies) == room


# Arithmetic.


def test_percentiles_are_values_that_were_measured() -> None:
    assert figures.percentiles(np.arange(1, 1001).astype(float)) == {
        "p50": 500, "p90": 900, "p99": 990, "p999": 999, "max": 1000,
    }  # fmt: skip
    assert figures.percentiles(np.array([])) == {}


def test_a_percentile_of_too_few_values_is_left_out() -> None:
    assert set(figures.percentiles(np.ones(99))) == {"p50", "p90", "max"}
    assert set(figures.percentiles(np.ones(999))) == {"p50", "p90", "p99", "max"}
    assert figures.percentiles(np.array([3.0])) == {"max": 3.0}


def test_a_slope_is_found_within_its_uncertainty() -> None:
    random = np.random.default_rng(7)
    seconds = np.arange(0, 3600, 60.0)
    missed = 0
    for _ in range(200):
        line = figures.slope(seconds, 100 + 20 * seconds / 3600 + random.normal(0, 2, len(seconds)))
        missed += abs(line.per_hour - 20) > line.plus_minus
    assert missed <= 24, "95 % of the intervals have the true slope"


def test_neighbours_that_are_alike_make_a_slope_less_sure() -> None:
    random = np.random.default_rng(3)
    seconds = np.arange(0, 3600, 30.0)
    noise = random.normal(0, 1, len(seconds))
    walk = np.zeros(len(seconds))
    for k in range(1, len(seconds)):
        walk[k] = 0.9 * walk[k - 1] + noise[k]
    scale = noise.std() / walk.std()
    assert figures.slope(seconds, walk * scale).plus_minus > 2 * figures.slope(seconds, noise).plus_minus


@pytest.mark.parametrize(
    ("values", "word"),
    [
        (np.full(40, 5.0), figures.STEADY),
        (np.linspace(100, 150, 40), figures.DRIFTS),
        (np.linspace(100, 101, 40), figures.STEADY),  # sure, but too little to matter
        (np.array([1.0, 2.0]), figures.UNKNOWN),
        (np.where(np.arange(8) % 3, 1.0, 9.0), figures.UNKNOWN),
    ],
)
def test_the_verdict_about_drift(values: figures.Floats, word: str) -> None:
    line = figures.slope(np.arange(len(values)) * 60.0, values)
    assert figures.verdict(line)[0] == word, figures.verdict(line)


def test_a_soak_is_judged_without_its_first_third() -> None:
    samples = [{"memory_mb": 10.0 * min(k, 20)} for k in range(60)]
    told = soak.judged(samples, 1.0, 60.0)
    assert told["verdicts"]["memory_mb"]["verdict"] == figures.STEADY
    assert len(told["samples"]["memory_mb"]["values"]) == 60
    rising = soak.judged([{"memory_mb": 10.0 * k} for k in range(60)], 1.0, 60.0)
    assert rising["verdicts"]["memory_mb"]["verdict"] == figures.DRIFTS


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        ({"idle": 0.5, "busiest": 0.97}, "load generator"),
        ({"idle": 0.4, "busiest": 0.3}, "server, or waiting for it"),
        ({"idle": 0.02, "busiest": 0.3, "load": 0.5, "servers": 1.4}, "machine: all 2 cores are busy"),
        ({"idle": 0.0, "busiest": 0.3, "load": 0.5, "servers": 0.5},
         "machine: all 2 cores are busy, 1.0 of them with other processes"),
    ],
)  # fmt: skip
def test_who_is_the_limit(phase: dict[str, float], said: str) -> None:
    assert figures.limit(phase, 2) == said


# Counting what was answered and what came.


def answer(prefix: bytes, i: int, body: bytes = b'{"stream":"S","seq":17}') -> bytes:
    return b"MSG %s%d 2 %d\r\n%s\r\n" % (prefix, i, len(body), body)


def test_answers_are_counted_wherever_the_buffer_is_cut() -> None:
    prefix = b"_INBOX.a.2."
    data = b"".join(answer(prefix, i) for i in range(5))
    ends = [m.end() for m in re.finditer(rb"\}\r\n", data)]
    for cut in range(len(data) + 1):
        found = publishing.answered(data[:cut], prefix)
        whole = sum(end <= cut for end in ends)
        if found is not None:
            assert found == (whole, ends[whole - 1] if whole else 0), cut
        else:
            assert whole == 0 or data[:cut].count(b"\r\n") < 2, cut


@pytest.mark.parametrize(
    "strange",
    [
        b"PING\r\n",
        b"HMSG _INBOX.a.2.3 2 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
        answer(b"_INBOX.a.2.", 3, b'{"error":{"code":503},"seq":0}'),
        answer(b"_INBOX.a.2.", 3, b'{"stream":"S","seq":1,"duplicate":true}'),
        answer(b"_INBOX.b.2.", 3),
        answer(b"_INBOX.a.2.", 3, b"{}"),
    ],
)
def test_an_answer_that_is_no_plain_ack_is_not_counted(strange: bytes) -> None:
    prefix = b"_INBOX.a.2."
    data = answer(prefix, 1) + strange + answer(prefix, 2)
    found = publishing.answered(data, prefix)
    assert found is None or found[1] <= len(answer(prefix, 1))


def messages(*frames: bytes) -> wire.Messages:
    data = b"".join(frames)
    found = wire.scan(bytearray(data), len(data), sid=7).messages
    assert found is not None
    return found


def delivered(app: int, ack: bytes, body: bytes = b"x") -> bytes:
    subject = Place("r", ("S",), 10).subject(app, 3).encode()
    return b"MSG %s 7 %s %d\r\n%s\r\n" % (subject, ack, len(body), body)


def test_acks_go_to_the_reply_subject_of_each_message() -> None:
    got = messages(
        delivered(1, b"$JS.ACK.S.c.1.1.1.5.9"), delivered(12, b"$JS.ACK.S.c.1.22.2.5.8"), delivered(3, b"a.b")
    )
    rows = np.array([0, 2])
    assert consuming.replies(got, rows).to_pylist() == [b"$JS.ACK.S.c.1.1.1.5.9", b"a.b"]
    assert bytes(consuming.ack_frames(consuming.replies(got, rows))) == (
        b"PUB $JS.ACK.S.c.1.1.1.5.9 4\r\n+ACK\r\nPUB a.b 4\r\n+ACK\r\n"
    )
    assert consuming.app_of(got, Place("r", ("S",), 10), np.arange(3)).tolist() == [1, 12, 3]


def test_requests_of_flow_control_are_told_by_their_empty_body() -> None:
    got = messages(delivered(1, b"$JS.ACK.S.c.1.1.1.5.9"), b"HMSG in 7 $JS.FC.S.c.1 12 12\r\nNATS/1.0\r\n\r\n\r\n")
    assert consuming.sizes(got.values).tolist() == [1, 0]
    assert consuming.sizes(got.values[1:]).tolist() == [0]


def test_the_time_in_a_body_is_the_time_it_was_due() -> None:
    bodies = pa.array([b"%020d%s" % (moment, b"abc") for moment in (5, 123_456_789_012_345)], pa.binary())
    assert pacing.stamps(bodies).tolist() == [5, 123_456_789_012_345]


def test_latencies_are_told_by_window_and_kept_only_where_one_window_is_all() -> None:
    told: list[dict[str, Any]] = []
    many = pacing.Windows(0, 1.0, 3.0, told.append, "ack")
    for second in range(3):
        many.add(np.array([second * 10**9]), second * 10**9 + 5_000_000 * (second + 1))
    assert many.everything() == []
    assert [(each["window"], each["ack"]["max"]) for each in told] == [(0, 5.0), (1, 10.0), (2, 15.0)]
    one = pacing.Windows(0, 9.0, 3.0, told.append, "ack")
    one.add(np.array([0, 10**6]), 2 * 10**6)
    assert one.everything() == [2.0, 1.0]


def test_every_subject_is_published_equally_often() -> None:
    place = Place("r", ("S",), 10)
    sent = b"".join(bytes(data) for _, data in publishing.blocks(place, b"in.", 16))
    counts = {
        subject: sent.count(subject.encode()) for subject in (place.subject(a, e) for a in range(10) for e in range(10))
    }
    assert set(counts.values()) == {100}


# What is lost is an error.


@pytest.mark.parametrize(
    ("ack", "told", "why"),
    [
        ("none", Told(messages=4, more={"got": [4]}), "5 messages are stored in stream 1, and a consumer got 4"),
        ("none", Told(messages=6, more={"got": [6]}), "got 6"),
        ("explicit", Told(messages=5, more={"got": [5], "ack_pending": 2}), "2 acks"),
        ("none", Told(messages=0, remark="late", more={"got": [0]}), "got none"),
        ("none", Told(messages=4, interruptions=1, more={"got": [4]}), "got 4"),
    ],
)
def test_a_consumer_that_lacks_messages_is_an_error(ack: str, told: Told, why: str) -> None:
    with pytest.raises(DataLossError, match=why):
        run.check_consumed(ack, [5], told)


def test_after_an_interruption_messages_may_come_again() -> None:
    run.check_consumed("explicit", [5], Told(messages=7, interruptions=1, more={"got": [7], "ack_pending": 1}))
    run.check_consumed("none", [5], Told(messages=3, remark="the time was over", more={"got": [3]}))


def test_messages_at_a_constant_rate_must_all_come() -> None:
    run.check_delivered(Told(messages=10), Told(messages=10), 10)
    with pytest.raises(DataLossError, match="9 acks came"):
        run.check_delivered(Told(messages=9), Told(messages=10), 10)
    with pytest.raises(DataLossError, match="9 were delivered"):
        run.check_delivered(Told(messages=10), Told(messages=9), 10)


# The report.


def spread(median: float, low: float | None = None, high: float | None = None, rounds: int = 3) -> dict[str, Any]:
    return {
        "median": median,
        "low": median if low is None else low,
        "high": median if high is None else high,
        "rounds": rounds,
    }


def a_report(rate: float = 1000.0, name: str = "baseline", **more: Any) -> dict[str, Any]:
    scenario = {
        "name": name, "values": {}, "failed": [], "remarks": [],
        "limits": {"publish": "load generator", "consume": "x"},
        "rounds": [], "figures": {
            "publish_rate": spread(rate, rate * 0.9, rate * 1.1), "consume_rate": spread(2000.0),
            "ack_p99": spread(2.5),
            "delivered_p99": spread(3.5), "stored_bytes": spread(300.0),
        },
    }  # fmt: skip
    told: dict[str, Any] = {
        "format": 1, "began": "2026-01-01T00:00:00Z", "took": 61.0, "scenarios": [scenario], "left_out": {},
        "remarks": [],
        "machine": {"processor": "p", "cores": 2, "memory_gb": 4, "system": "s", "python": "3", "load_before": 0.1},
        "server": {"version": "2.15.1", "kind": "embedded", "servers": 3},
        "settings": {"seconds": 2.0, "rounds": 3, "rate": 1000.0, "most_bytes": 1 << 20},
    }  # fmt: skip
    return told | more


def a_soak() -> dict[str, Any]:
    samples = [{"memory_mb": 50.0 + k % 3, "ack_p99": 2.0} for k in range(30)]
    told = soak.judged(samples, 2.0, 60.0)
    return told | {"scenario": "baseline", "rate": 100.0, "published": 6000, "delivered": 6000, "remarks": []}


def whole_report() -> dict[str, Any]:
    told = a_report(soak=a_soak())
    told["beside"] = {"said": "nats v1", "figures": [
        {"what": "publish", "ours": spread(10.0), "theirs": spread(5.0), "ratio": spread(2.0), "server_cores": 1.0}
    ]}  # fmt: skip
    told["against"] = report.compared(told, a_report(rate=500.0), "old.json")
    return told


COMMAND = sys.modules["penstock.cli.jetstream.bench"]  # the package has the function of this name


def benched(monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], *words: str) -> Result:
    monkeypatch.setattr(COMMAND, "_measured", lambda *given: told)
    return CliRunner().invoke(app, ["jetstream", "bench", *words])


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_report_that_cannot_be_written_is_shown_and_said(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "jetstream-bench.md").mkdir()  # as a full disk, after the run
    ran = benched(monkeypatch, a_report(), "--out", str(tmp_path), *words)
    assert ran.exit_code == 1
    assert "baseline" in ran.stdout
    said = " ".join(ran.stderr.split())
    assert f"the report cannot be written to '{tmp_path}': Is a directory." in said
    assert isinstance(ran.exception, SystemExit), "it is a sentence, no traceback"


def test_what_was_finished_before_ctrl_c_is_reported_with_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = benched(monkeypatch, a_report(stopped=True), "--out", str(tmp_path), "--json")
    assert ran.exit_code == 130
    assert json.loads(ran.stdout)["stopped"] is True
    assert json.loads((tmp_path / "jetstream-bench.json").read_text())["scenarios"]
    assert "penstock: stopped" in ran.stderr


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int) -> Any:
    """Run two scenarios in two rounds, with Ctrl-C after so many of these four."""
    done: list[str] = []

    class Fake:
        def __init__(self, scenario: matrix.Scenario, *given: Any):
            self.name = scenario.name

        def measured(self) -> dict[str, Any]:
            if len(done) == after:
                raise KeyboardInterrupt
            done.append(self.name)
            return {"figures": {"publish_rate": 1.0}, "phases": {}, "checked": {}, "remarks": []}

    monkeypatch.setattr(run, "Round", Fake)
    both = [matrix.Scenario.of({}), matrix.Scenario.of({"storage": "memory"})]
    at = run.Server(NatsOptions.parse("jetstream", {}))
    return run.run(both, run.Settings(rounds=2), "x", lambda scenario: nullcontext(at), lambda at: None, 1.0)


def test_ctrl_c_keeps_the_rounds_that_are_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(run.Stopped) as stopped:
        interrupted(monkeypatch, after=3)
    assert [len(each.rounds) for each in stopped.value.outcomes] == [2, 1]
    told: dict[str, Any] = {"scenarios": [], "left_out": {}, "remarks": []}
    never = run.Outcome(matrix.Scenario.of({"size": "16"}))
    COMMAND._stopped(told, [*stopped.value.outcomes, never])
    assert [each["name"] for each in told["scenarios"]] == ["baseline", "storage=memory"]
    assert told["left_out"] == {never.scenario.name: "it was stopped before"}
    assert told["stopped"] is True


def test_ctrl_c_before_the_first_round_has_ended_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt) as stopped:
        interrupted(monkeypatch, after=0)
    assert not isinstance(stopped.value, run.Stopped)
    with pytest.raises(KeyboardInterrupt):
        COMMAND._stopped({"scenarios": [], "left_out": {}, "remarks": []}, [])


def test_a_folder_that_goes_away_while_it_is_measured_counts_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "block").write_bytes(b"12345")
    scandir = os.scandir

    def scan(path: Any) -> Any:
        if str(path).endswith("a"):
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert machine.disk_bytes([tmp_path]) == 5


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere() -> None:
    text = page.html(whole_report())
    root = parsed(text)
    assert len(root.findall(".//{http://www.w3.org/2000/svg}svg")) >= 6
    assert len(root.findall(".//table")) >= 7
    without_namespace = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"<script|https?:|@import|url\(|<link|<img|<iframe", without_namespace)
    assert "prefers-color-scheme: dark" in text


def test_each_plot_has_its_figures_in_a_table_below() -> None:
    text = page.html(whole_report())
    assert text.index("<svg") < text.index("1,000 (900 to 1,100)")


def test_hostile_names_and_errors_are_only_text() -> None:
    told = a_report(name=HOSTILE, left_out={HOSTILE: HOSTILE}, remarks=[HOSTILE])
    told["server"]["version"] = told["machine"]["processor"] = HOSTILE
    told["scenarios"][0] |= {
        "failed": [HOSTILE],
        "remarks": [HOSTILE],
        "limits": {"publish": HOSTILE, "consume": HOSTILE},
    }
    told["against"] = report.compared(told, told, HOSTILE)
    text = page.html(told)
    root = parsed(text)
    assert not root.findall(".//script")
    assert "\x1b" not in text
    shown = report.markdown(told)
    assert "\x1b" not in shown
    assert not re.search(r"(?<!\\)<script", shown.partition("## ")[2])
    head, line = _first_rows(shown)
    assert len(re.findall(r"(?<!\\)\|", head)) == len(re.findall(r"(?<!\\)\|", line))


def _first_rows(shown: str) -> tuple[str, str]:
    rows = [row for row in shown.splitlines() if row.startswith("| ")]
    return rows[0], rows[2]


def test_the_same_report_is_the_same_text_and_can_be_loaded_again(tmp_path: Path) -> None:
    told = report.settled(whole_report())
    file = tmp_path / "a.json"
    file.write_text(report.as_json(told))
    again = report.loaded(file)
    assert report.as_json(again) == report.as_json(told)
    assert report.markdown(again) == report.markdown(told)
    assert report.compared(told, again, "a.json")["figures"][0]["ratio"] == 1.0


def test_figures_that_are_no_numbers_are_valid_json() -> None:
    text = report.as_json(a_report(soak={"a": [math.nan, math.inf]}))
    assert json.loads(text, parse_constant=lambda word: pytest.fail(word))["soak"] == {"a": [None, None]}


@pytest.mark.parametrize(
    "content", ["", "[]",
                '{"format": 2, "scenarios": []}', '{"format": 1, "scenarios": [{"name": 1}]}', '{"format": 1}',
                '{"format": 1, "scenarios": [{"name": "a", "figures": {"x": 1}}]}'],
)  # fmt: skip
def test_a_file_that_is_no_report_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(OptionError, match=r"a\.json"):
        report.loaded(tmp_path / "a.json")


def test_a_change_counts_only_beyond_the_spread_of_the_rounds() -> None:
    found = {each.metric: each for each in figures.compare(a_report(rate=1150.0), a_report(rate=1000.0))}
    assert found["publish_rate"].remark == "within the spread of the rounds"
    better = figures.compare(a_report(rate=1500.0), a_report(rate=1000.0))[0]
    assert (better.beyond, better.remark) == (True, "better, beyond the spread of the rounds")
    worse = figures.compare(a_report(rate=500.0), a_report(rate=1000.0))[0]
    assert worse.remark.startswith("worse")
    once = a_report(rate=10.0)
    once["scenarios"][0]["figures"]["publish_rate"] = spread(10.0, rounds=1)
    assert figures.compare(once, a_report())[0].remark == "one round has no spread"


def test_a_higher_latency_is_worse() -> None:
    slow = a_report()
    slow["scenarios"][0]["figures"]["ack_p99"] = spread(9.0)
    found = {each.metric: each for each in figures.compare(slow, a_report())}
    assert found["ack_p99"].remark.startswith("worse")


def test_other_machines_and_servers_are_never_compared_silently() -> None:
    other = a_report()
    other["server"]["version"], other["machine"]["cores"] = "2.10.29", 64
    part = report.compared(a_report(), other, "old.json")
    assert "server: version is 2.15.1, and was 2.10.29" in report.different(part)
    assert "machine: cores is 2, and was 64" in report.different(part)
    told = a_report(against=part)
    assert "These runs are not alike" in report.markdown(told)
    assert "These runs are not alike" in page.html(told)
    assert report.different(report.compared(a_report(), a_report(), "x")) == ""


# nats bench.


def test_the_rate_of_nats_bench_is_read() -> None:
    assert beside.rate("NATS JetStream asynchronous publisher stats: 38,356 msgs/sec ~ 9.4 MiB/sec ~ 26us") == 38356
    with pytest.raises(ConnectError, match="told no rate"):
        beside.rate("oops")


def test_secrets_for_nats_bench_are_in_no_command_line() -> None:
    options = NatsOptions.parse("jetstream", {"servers": "nats://a:4222", "user": "u", "password": "s3cret"})
    env = beside.environment(options)
    assert (env["NATS_USER"], env["NATS_PASSWORD"]) == ("u", "s3cret")
    asked = beside.commands("S", "s", matrix.Scenario.of({}), 10)
    assert "s3cret" not in json.dumps(asked)
    token = NatsOptions.parse("jetstream", {"servers": "nats://a:4222", "token": "s3cret"})
    with pytest.raises(OptionError, match="cannot connect with 'token'") as refused:
        beside.environment(token)
    assert "s3cret" not in str(refused.value)


# The documentation.


def test_the_page_has_the_tables_of_what_is_declared() -> None:
    text = (ROOT / "docs" / "jetstream" / "bench.md").read_text()
    assert report.dimension_table() in text
    assert report.metric_table() in text


def test_the_committed_report_is_what_its_figures_say() -> None:
    results = ROOT / "bench" / "results"
    told = report.loaded(results / "jetstream-matrix.json")
    assert report.markdown(told) == (results / "jetstream-matrix.md").read_text()
    assert page.html(told) == (results / "jetstream-matrix.html").read_text()
    assert report.failures(told) == 0
