"""What brokers of several releases say of their state, as numbers."""

from skyroute.client.admin.broker_load import read_load
from skyroute.client.admin.cluster import BrokerInfo
from skyroute.wire.calls.settings import decode_broker_state
from tests.unit.wire.golden import golden_line


def broker(**changes: str) -> BrokerInfo:
    state = decode_broker_state(golden_line("client/broker-state.txt")) | changes
    return BrokerInfo("DefaultCluster", "broker-a", 0, "127.0.0.1:10911", state)


def test_a_broker_of_5_5() -> None:
    load = read_load(broker(putTps="1.5 2.5 3.5", getTransferredTps="4.5 0.0 ", msgPutTotalTodayMorning="1"))
    assert (load.version, load.into, load.out, load.into_today, load.out_today) == ("V5_5_0", 1.5, 4.5, 2, 0)
    assert (load.disk, load.disk_nearly_full, load.started_ms) == (0.18, False, 1794732507678)
    assert read_load(broker(commitLogDiskRatio="0.85")).disk_nearly_full


def test_brokers_before_5_0_spell_the_rate_out_with_one_letter_less() -> None:
    found = broker(getTransferedTps="7.0 8.0 9.0")
    state = {key: text for key, text in found.state.items() if key != "getTransferredTps"}
    assert read_load(BrokerInfo("c", "b", 0, "a:1", state)).out == 7.0


def test_what_is_missing_or_makes_no_sense_is_not_known() -> None:
    load = read_load(
        BrokerInfo("c", "b", 0, "a:1", {"putTps": "", "commitLogDiskRatio": "-1.0", "bootTimestamp": "soon"})
    )
    assert (load.into, load.out, load.into_today, load.disk, load.started_ms) == (None, None, None, None, None)


def test_damage_is_counted_where_a_broker_tells_of_it() -> None:
    load = read_load(broker(commitLogDamagedRanges="2", commitLogDamagedBytes="300", commitLogCutBytes="x"))
    assert (load.damaged_ranges, load.damaged_bytes, load.cut_bytes) == (2, 300, 0)
    assert read_load(broker(commitLogDamagedRanges="9" * 30)).damaged_ranges == 0
    assert read_load(broker()).damaged_ranges == 0
