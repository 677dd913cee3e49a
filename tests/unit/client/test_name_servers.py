from collections.abc import Sequence

import pytest

from skyroute.client.errors import ClientError
from skyroute.client.session.name_servers import NameServers
from tests.support.named_hosts import run_with_names


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("127.0.0.1:9876", ("127.0.0.1:9876",)),
        ("a:1;b:2", ("a:1", "b:2")),
        (" a:1 , b:2 ;", ("a:1", "b:2")),
        (["a:1", " b:2 "], ("a:1", "b:2")),
        ("http://a:1", ("a:1",)),
        ("[::1]:9876", ("[::1]:9876",)),
        ("a:65535", ("a:65535",)),
        (["a:1;b:2", "c:3"], ("a:1", "b:2", "c:3")),
    ],
)
def test_addresses_in_all_their_forms(given: str | Sequence[str], expected: tuple[str, ...]) -> None:
    assert NameServers(given).addresses == expected


@pytest.mark.parametrize("given", ["", " ; ", [], ["", " "], None])
def test_without_an_address_the_error_names_the_options(given: str | Sequence[str] | None) -> None:
    with pytest.raises(ClientError, match="NAMESRV_ADDR"):
        NameServers(given)


@pytest.mark.parametrize(
    "given",
    [
        *("a", "a:", ":1", "a:0", "a:65536", "a:x", "a:-1", "a:٣", "a:1;b", "a:" + "9" * 5_000),
        *("a:1 b:2", "a :1", "https://a:1", "http://a:1/"),
    ],
)
def test_an_invalid_address_is_refused(given: str) -> None:
    with pytest.raises(ClientError, match="is invalid: expected host:port"):
        NameServers(given)


@pytest.mark.parametrize("given", [9876, b"a:1", ["a:1", None], ("a", 9876)])
def test_an_address_that_is_not_text_is_refused(given: object) -> None:
    with pytest.raises(ClientError, match="expected 'host:port;host:port', or a list of addresses"):
        NameServers(given)  # type: ignore[arg-type]  # that is the slip


def test_the_environment_variable_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876;10.0.0.2:9876")
    assert NameServers(None).addresses == ("10.0.0.1:9876", "10.0.0.2:9876")
    assert NameServers("a:1").addresses == ("a:1",)


async def test_the_server_that_responded_is_first() -> None:
    servers = NameServers("127.0.0.1:1;127.0.0.1:2;127.0.0.1:3")
    for address in servers.addresses:
        servers.prefer(address)
        in_turn = await servers.in_turn()
        assert in_turn[0] == address
        assert sorted(in_turn) == sorted(servers.addresses)
    servers.prefer("127.0.0.1:4")
    assert sorted(await servers.in_turn()) == sorted(servers.addresses)


async def test_not_everybody_begins_with_the_same_one() -> None:
    assert len({(await NameServers("127.0.0.1:1;127.0.0.1:2").in_turn())[0] for _ in range(100)}) == 2


def test_a_name_stands_for_all_its_addresses() -> None:
    names = {"many.example": ["10.0.0.1", "10.0.0.2", "10.0.0.1", "fe80::1"]}

    async def ask() -> None:
        servers = NameServers("many.example:9876")
        assert await servers.in_turn() == ["10.0.0.1:9876", "10.0.0.2:9876", "[fe80::1]:9876"]
        servers.prefer("10.0.0.2:9876")
        assert await servers.in_turn() == ["10.0.0.2:9876", "10.0.0.1:9876", "[fe80::1]:9876"]
        names["many.example"] = ["10.0.0.9"]
        assert await servers.in_turn() == ["10.0.0.9:9876"]

    run_with_names(names, ask)


@pytest.mark.parametrize("name", ["no-such-host:9876", "a" * 300 + ":9876", "..:9876"])
def test_an_unknown_host_name_is_returned_unchanged(name: str) -> None:
    async def ask() -> None:
        assert await NameServers(name).in_turn() == [name]

    run_with_names({}, ask)
