from skyroute.wire.codes import LANGUAGES, V3_0_11, V4_9_4, V5_0_0, V5_3_1, RequestCode, ResponseCode


def test_languages_stand_at_their_numbers() -> None:
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


def test_the_releases_that_decide_something_have_their_ordinals() -> None:
    assert (V3_0_11, V4_9_4, V5_0_0, V5_3_1) == (37, 401, 413, 475)


def test_response_codes_are_those_peers_know() -> None:
    assert {code.name: code.value for code in ResponseCode} == {
        "SUCCESS": 0,
        "SYSTEM_ERROR": 1,
        "SYSTEM_BUSY": 2,
        "REQUEST_CODE_NOT_SUPPORTED": 3,
        "NO_PERMISSION": 16,
        "TOPIC_NOT_EXIST": 17,
        "QUERY_NOT_FOUND": 22,
        "GO_AWAY": 1500,
    }


def test_every_request_of_a_name_server_has_its_code() -> None:
    asked = {100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327}
    assert set(map(int, RequestCode)) >= asked | {901, 904, 905}
