from pathlib import Path

import pytest

from conformance.suite import Conformance, WriteConformance
from journal import Journal, JournalLog


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
