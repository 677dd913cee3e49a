"""The conformance scenarios, played on Apache's name server and on ours, and compared answer by answer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.peers.scenarios import SCENARIOS, Scenario
from tests.peers.transcript import Stage, Step, differences
from tests.support.apache import NameServerProcess
from tests.support.raw import Form


@dataclass(frozen=True, slots=True)
class Allowed:
    """Fields of one step in which ours may differ, indeed must: an entry that no longer applies fails the test."""

    fields: str
    why: str


UNSET_REMARK = "Java leaves its 'not set any response code' in a successful 901; callers read the body only"
REQUIRED = "Java works on with null: a crash as remark, or a success that did nothing; we name the missing field"
BROKEN = "Java's remark is an exception and a line of its source; ours says what is wrong with the body"
NO_TABLE = "a registration without a topic table says nothing; Java records it, or crashes and answers success"
MOVED = "Java keys groups by name alone and leaves a renamed broker in both clusters; we move it"
ZONE_DIALECT = "Java writes the filtered route in the legacy dialect even for clients that ask for standard JSON"
BAD_VALUE = "Java drops a number that does not parse, and reads any other word as false; we refuse and change nothing"
START_ONLY = "Java stops telling routes when told to wait for brokers again; we refuse what is only for the start"
OVERTAKEN = "a registration older than the last on the same connection was overtaken; Java lets it win"
FORGERY = "a name with a line break in it would let a peer write lines of its own into our log; no broker makes one"

ESCAPES = (
    "Java up to 5.3 escapes all but ASCII in this dialect, 5.5 does not; we keep to ASCII, which every reader takes"
)

ALLOWED: dict[str, Allowed] = {
    "1.members": Allowed("remark", UNSET_REMARK),
    "1.members-by-another-cluster": Allowed("remark", UNSET_REMARK),
    "1.members-unknown": Allowed("remark", UNSET_REMARK),
    "2.cluster-after-refusal": Allowed("body", "Java leaves an empty group behind when it refuses a newcomer"),
    "7.loser": Allowed("body fields", "Java keeps the live entry of an address whose id was taken over"),
    "9.zlib-flagged-plain": Allowed("code remark", "5.x brokers deflate the body and say that they did not; we look"),
    "9.route-zlib-flagged-plain": Allowed("code remark body", "the same: accepted, so there is a route"),
    "10.added-to-inherited": Allowed("body", "Java sets 6 and loses the other bits; we give back what was registered"),
    "11.brokers-left-of-two": Allowed("value", "Java evicts one broker a connection; a container registers several"),
    "16.known-part-stays": Allowed(
        "body", "Java applies what stands before an unknown broker; we apply all or nothing"
    ),
    "17.bad-number": Allowed("code remark", BAD_VALUE),
    "17.bad-boolean": Allowed("code remark", BAD_VALUE),
    "17.bad-boolean-reads": Allowed("value", BAD_VALUE),
    "21.wait": Allowed("code remark", START_ONLY),
    "19.members-are-legacy": Allowed("remark", UNSET_REMARK),
    "19.version-401": Allowed("text", ESCAPES),
    "19.asked-for": Allowed("text", ESCAPES),
    "19.asked-for-in-capitals": Allowed("text", ESCAPES),
    "20.zone": Allowed("text", ZONE_DIALECT),
    "20.zone-in-capitals": Allowed("text", ZONE_DIALECT),
    "20.zone-elsewhere": Allowed("text", ZONE_DIALECT),
    "26.route-without-topic": Allowed("code remark", REQUIRED),
    "26.delete-without-topic": Allowed("code remark", REQUIRED),
    "26.register-topic-without-topic": Allowed("code remark", REQUIRED),
    "26.put-without-value": Allowed("code remark", REQUIRED),
    "26.get-without-namespace": Allowed("code remark", REQUIRED),
    "26.delete-kv-without-key": Allowed("code remark", REQUIRED),
    "26.list-without-namespace": Allowed("code remark", REQUIRED),
    "26.cluster-topics-without-cluster": Allowed("code remark body", REQUIRED),
    "26.wipe-without-brokerName": Allowed("code remark fields", REQUIRED),
    "26.add-without-brokerName": Allowed("code remark fields", REQUIRED),
    "26.members-without-brokerName": Allowed("code remark body", REQUIRED),
    "26.register-without-brokerName": Allowed("code remark", REQUIRED),
    "26.register-without-brokerAddr": Allowed("code remark", REQUIRED),
    "26.register-without-clusterName": Allowed("code remark", REQUIRED),
    "26.register-without-brokerId": Allowed("remark", REQUIRED),
    "26.register-without-brokerId-but-a-word": Allowed("remark", REQUIRED),
    "26.beat-without-brokerAddr": Allowed("remark", REQUIRED),
    "26.beat-without-clusterName": Allowed("remark", REQUIRED),
    "26.query-without-brokerAddr": Allowed("remark", REQUIRED),
    "26.query-without-clusterName": Allowed("remark", REQUIRED),
    "27.not-json": Allowed("remark", BROKEN),
    "27.cut-json": Allowed("remark", BROKEN),
    "27.a-list": Allowed("remark", BROKEN),
    "27.not-zlib": Allowed("remark", BROKEN),
    "27.cut-zlib": Allowed("remark", BROKEN),
    "27.null-table": Allowed("code remark", NO_TABLE),
    "28.bare-names": Allowed("value", "fastjson, up to 5.3, reads them, fastjson2 closes; we read what either reads"),
    "31.cluster-after-rename": Allowed("body", MOVED),
    "31.route-after-rename": Allowed("body", MOVED),
    "31.topics-of-old-cluster": Allowed("body", MOVED),
    "32.plain-after-delete": Allowed(
        "body", "Java never forgets a static topic's mapping; we delete it with the topic"
    ),
    "34.route": Allowed("body", OVERTAKEN),
    "34.version": Allowed("body fields", OVERTAKEN),
    "35.no-topic-names-queues": Allowed("value", "Java crashes on a topic without a name; the table's key names it"),
    "37.zone": Allowed("code remark", FORGERY),
    "37.cluster": Allowed("code remark", FORGERY),
    "37.broker": Allowed("code remark", FORGERY),
    "37.topic": Allowed("code remark", FORGERY),
    "37.route": Allowed("code remark body", FORGERY),
}

# A binary request is answered by Apache in the form that its operator configured, by us in the form of the request,
# which every client can read and the C++ client needs.
FORM_OF_THE_ANSWER = "form"

CASES = [
    pytest.param(scenario, form, id=f"{scenario.number:02}-{form}-{scenario.play.__name__}")
    for scenario in SCENARIOS
    for form in ("json", "binary")
    if form == "json" or scenario.in_binary_too
]


@pytest.mark.parametrize(("scenario", "form"), CASES)
def test_both_servers_answer_alike_but_for_listed_differences(
    scenario: Scenario, form: Form, apache: NameServerProcess, ours: NameServerProcess, ours_is_apache: bool
) -> None:
    theirs = _play(scenario, form, apache, is_ours=False)
    answers = _play(scenario, form, ours, is_ours=not ours_is_apache)
    found = {
        (difference.step, difference.field): difference
        for difference in differences(theirs, answers)
        if not (form == "binary" and difference.field == FORM_OF_THE_ANSWER)
    }
    allowed = set() if ours_is_apache else _allowed(scenario)
    unexpected = [str(found[key]) for key in found if key not in allowed]
    outdated = [f"{step}: {field} no longer differs" for step, field in sorted(allowed - found.keys())]
    if unexpected or outdated:
        pytest.fail("\n".join([scenario.title, *unexpected, *outdated]), pytrace=False)


@pytest.mark.parametrize("form", ["json", "binary"])
def test_we_answer_in_the_form_of_the_request(form: Form, ours: NameServerProcess, ours_is_apache: bool) -> None:
    if ours_is_apache:
        pytest.skip("a second Apache stands in our place")
    with Stage(ours, 0, form, is_ours=True) as stage:
        line = stage.line()
        assert {line.call(code).form for code in (105, 106, 206, 9999)} == {form}


def test_every_allowed_difference_names_a_scenario() -> None:
    numbers = {str(scenario.number) for scenario in SCENARIOS}
    assert {key.split(".", 1)[0] for key in ALLOWED} <= numbers


def _play(scenario: Scenario, form: Form, server: NameServerProcess, *, is_ours: bool) -> dict[str, Step]:
    with Stage(server, scenario.number, form, is_ours=is_ours) as stage:
        scenario.run(stage)
        return stage.steps


def _allowed(scenario: Scenario) -> set[tuple[str, str]]:
    return {
        (step, field)
        for key, allowed in ALLOWED.items()
        for number, step in [key.split(".", 1)]
        if number == str(scenario.number)
        for field in allowed.fields.split()
    }
