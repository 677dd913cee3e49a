from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.state import State


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    state = State(tmp_path)
    yield state
    state.close()
