from pathlib import Path

import pytest

from penstock.connectors.journal import Journal
from penstock.testing.conformance import Conformance, WriteConformance
from penstock.testing.journal import JournalLog


class TestJournal(Conformance):
    connector = Journal

    @pytest.fixture
    def log(self, tmp_path: Path) -> JournalLog:
        return JournalLog(tmp_path / "log")


class TestJournalWrites(WriteConformance):
    connector = Journal

    @pytest.fixture
    def log(self, tmp_path: Path) -> JournalLog:
        return JournalLog(tmp_path / "log")
