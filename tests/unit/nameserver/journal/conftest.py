"""Journals whose writer does not pause between writes."""

import pytest


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyroute.nameserver.journal.recorder.LINGER_S", 0.001)
