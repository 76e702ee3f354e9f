"""Which streams are read and written: one name for both where there is one."""

from typing import Any

import pytest

from penstock.connectors.s2 import S2Streams
from penstock.errors import OptionError
from penstock.kit.contract import Predicate


def _read(**options: str) -> Any:
    return S2Streams.parse({"basin": "some-basin", **options})


def _write(**options: str) -> Any:
    return S2Streams.parse_sink({"basin": "some-basin", **options})


@pytest.mark.parametrize("option", ["stream", "streams"])
def test_one_name_is_read_and_written_by_either_option(option: str) -> None:
    assert _read(**{option: "orders"}).names == ("orders",)
    assert _write(**{option: "orders"}).target == "orders"
    assert _read(stream="orders", streams="orders").names == ("orders",)
    assert _write(stream="orders", streams="orders").target == "orders"


def test_a_name_with_a_comma_is_one_stream() -> None:
    assert _read(stream="a,b").names == ("a,b",)
    assert _read(streams="a,b").names == ("a", "b")


def test_a_table_reads_what_its_template_wrote() -> None:
    options = {"stream": "events/{partition}", "streamPrefix": "events/"}
    assert _read(**options).names == ()
    assert _read(**options).stream_prefix == "events/"
    assert _read(stream="{region}/x", streamPrefix="eu/").names == ()
    assert _write(stream="events/{partition}").direct()
    assert _write(streams="events/{partition}").direct()
    assert not _write(streams="events").direct()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "set 'stream', 'streams' or 'streamPrefix'"),
        ({"streams": "a", "streamPrefix": "b"}, "set 'streams' or 'streamPrefix', one of both"),
        ({"streams": "a,b", "stream": "c"}, "'stream' is 'c', and 'streams' is 'a,b': set one of both"),
        ({"stream": "out", "streamPrefix": "in/"}, "does not begin with the 'streamPrefix' 'in/': set one of both"),
        ({"stream": "out/{x}", "streamPrefix": "in/"}, "does not begin with the 'streamPrefix' 'in/'"),
        ({"stream": "e/{partition}"}, "is the template 'e/{partition}', .* set 'streamPrefix' to 'e/' besides"),
    ],
)
def test_streams_to_read_that_contradict_each_other_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        _read(**options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"streams": "a,b"}, "rows go to one stream, and 'streams' names 2: set 'stream'"),
        ({"streams": "a,b", "stream": "c"}, "'stream' is 'c', and 'streams' is 'a,b': set one of both"),
        ({"streams": "x" * 513}, "1 to 512 bytes"),
        ({"streamPrefix": "a"}, "'streamPrefix' is for the source of s2"),
    ],
)
def test_streams_to_write_that_contradict_each_other_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        _write(**options)
    assert _write(streams="a,b", stream="a").target == "a"


def test_a_predicate_narrows_a_single_name_too() -> None:
    assert S2Streams.narrow(_read(stream="a"), [Predicate("stream", "=", "b")]) is None
    narrowed = S2Streams.narrow(_read(stream="a"), [Predicate("stream", "in", ("a", "b"))])
    assert narrowed is not None
    assert narrowed.names == ("a",)
