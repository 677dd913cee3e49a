"""Brokers that register addresses that cannot be notified."""

import pytest

from tests.adversity.conftest import Start
from tests.adversity.faults import TIMEOUT_S, broker, check_survives
from tests.support.codes import SUCCESS
from tests.support.process import Loop
from tests.support.raw import Listener, RawConnection

NOTIFY = 905
ODD_ADDRESSES = [
    "nowhere",
    ":1",
    "host:",
    "host:name",
    "host:²",
    "host:-1",
    "127.0.0.1:0",
    "127.0.0.1:1",
    "127.0.0.1:99999",
    "127.0.0.1:" + "9" * 400,
    "a" * 70 + ":1",
    "a" * 500 + ":1",
    ".:1",
    "..:1",
    "a..b:1",
    "xn--:1",
    "ß" * 70 + ":1",
    "[::1:1",
    "[]:1",
    "[fe80::1%none]:1",
    "192.0.2.1:1",
    "255.255.255.255:1",
    "localhost;rm:1",
    "host name:1",
]


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_an_unreachable_broker_does_not_delay_notices_to_others(start: Start, loop: Loop) -> None:
    server = start(loop=loop, notifyMinBrokerIdChanged="true", connectTimeoutMillis=500)
    with (
        check_survives(server, lines_max=15 * len(ODD_ADDRESSES)),
        RawConnection(server.address, timeout_s=TIMEOUT_S) as line,
        Listener(timeout_s=TIMEOUT_S) as listener,
    ):
        for number, address in enumerate([*ODD_ADDRESSES, listener.address]):
            slave = broker(f"group-{number}", broker_id=2, address=address, ha_address="10.0.0.1:10912", acting=True)
            assert line.call(slave.request).code == SUCCESS
            assert line.call(slave.but(broker_id=1, address=f"10.0.1.{number}:10911").request).code == SUCCESS
        notice = listener.receive()
        assert (notice.code, notice.is_one_way, notice.fields["minBrokerId"]) == (NOTIFY, True, "1")
    assert server.stop() == 0
