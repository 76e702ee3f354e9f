"""What sinks leave on servers, as version 0.2 wrote it: a query that an earlier version began must be known again.

Ledger notes of JetStream are in tests/server/test_ledger.py, where there is a server to read them from.
"""

from penstock.connectors.iggy.rows import name
from penstock.connectors.s2.chain import Stamp
from penstock.kit.contract import Origin

ORIGIN = Origin("6d1c9a52-0d1c-4a59-9d1e-6f1f2f3a4b5c", 7, 3)


def test_the_ids_of_messages_in_jetstream_are_those_of_0_2() -> None:
    assert ORIGIN.id == "6d1c9a52-0d1c-4a59-9d1e-6f1f2f3a4b5c/7/3/"


def test_the_stamps_in_s2_are_those_of_0_2() -> None:
    stamp, text = Stamp(ORIGIN, 1000, 0xDEADBEEF, True), b"1;6d1c9a52-0d1c-4a59-9d1e-6f1f2f3a4b5c;7;3;1000;deadbeef;f"
    assert stamp.encode() == text
    assert Stamp.decode(text) == stamp


def test_the_ids_in_iggy_are_those_of_0_2() -> None:
    assert name(ORIGIN) == (0xC7F3A8AA3A750000, 0x7000030000000)
