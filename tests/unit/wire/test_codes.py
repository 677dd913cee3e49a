import json
from enum import IntEnum

import pytest

from skyroute.wire.codes import LANGUAGES, V3_0_11, V4_9_4, V5_0_0, V5_3_1, RequestCode, ResponseCode
from tests.unit.wire.golden import golden_line


def test_languages_have_apaches_numbers() -> None:
    assert {name: number for number, name in enumerate(LANGUAGES)} == {
        "JAVA": 0,
        "CPP": 1,
        "DOTNET": 2,
        "PYTHON": 3,
        "DELPHI": 4,
        "ERLANG": 5,
        "RUBY": 6,
        "OTHER": 7,
        "HTTP": 8,
        "GO": 9,
        "PHP": 10,
        "OMS": 11,
        "RUST": 12,
        "NODE_JS": 13,
    }


def test_versions_have_apaches_ordinals() -> None:
    assert (V3_0_11, V4_9_4, V5_0_0, V5_3_1) == (37, 401, 413, 475)


@pytest.mark.parametrize(("codes", "kind"), [(RequestCode, "requests"), (ResponseCode, "responses")])
def test_every_code_has_the_number_it_has_in_java(codes: type[IntEnum], kind: str) -> None:
    in_java = json.loads(golden_line("apache-5.5.0/codes.json"))[kind]
    of_java = [code for code in codes if code is not RequestCode.WATCH_ROUTES]
    assert {code.name: code.value for code in of_java} == {code.name: in_java.get(code.name) for code in of_java}


def test_our_own_code_is_not_one_of_apaches() -> None:
    in_java = json.loads(golden_line("apache-5.5.0/codes.json"))["requests"]
    assert RequestCode.WATCH_ROUTES.name not in in_java
    assert RequestCode.WATCH_ROUTES.value not in in_java.values()


def test_every_response_code_of_clients_is_defined() -> None:
    """All of Java's, except those between jRaft controllers, inside a proxy, and unused ones of transactions."""
    in_java = json.loads(golden_line("apache-5.5.0/codes.json"))["responses"]
    elsewhere = ("CONTROLLER_JRAFT_", "CONTROLLER_BROKER_LIVE_", "RPC_", "TRANSACTION_S", "LITE_", "LMQ_")
    assert {name for name in in_java if not name.startswith(elsewhere)} == {code.name for code in ResponseCode}


def test_every_request_code_of_name_servers_is_defined() -> None:
    asked = {100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327}
    assert set(map(int, RequestCode)) >= asked | {901, 904, 905}
