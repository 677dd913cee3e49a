"""What does access control cost a name server and a broker?

Run from the repository's root: `python -m benchmarks.access`. Two servers of one kind run side by side, one that checks
the signature and the policies of every request and one that checks nothing; the same load is put on both in turns.
`README.md` says how to read it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.figures import Target, table
from benchmarks.load.programs import Brokers, build, load_broker, read_routes
from benchmarks.memory import FEW_TOPICS, SIDES, Bench, Side
from tests.support.apache import LARGE_HEAP, ApacheBroker, PeerUnavailableError, SkyrouteNameServer, fetch_jars
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import RawConnection, Request
from tests.support.signing import Key

RATIO_MIN: Final = 0.85
ROOT: Final = Key("root", "secret-of-root")
USER: Final = Key("loader", "secret-of-loader")
KEY: Final = f"{USER.name}:{USER.secret}"
QUEUES: Final = 8
BODY_BYTES: Final = 1024
TOPIC: Final = "AccessLoad"

_providers = "org.apache.rocketmq.auth.{0}.provider.{1}{2}Provider".format
GUARDED: Final = {
    "authenticationEnabled": "true",
    "authenticationProvider": _providers("authentication", "Default", "Authentication"),
    "authenticationMetadataProvider": _providers("authentication", "Local", "AuthenticationMetadata"),
    "authorizationEnabled": "true",
    "authorizationProvider": _providers("authorization", "Default", "Authorization"),
    "authorizationMetadataProvider": _providers("authorization", "Local", "AuthorizationMetadata"),
    "initAuthenticationUser": ROOT.json,
    "innerClientAuthenticationCredentials": ROOT.credentials_json,
}
ROWS: Final = {
    "1": "routes, 16 x 16, readers need no key",
    "2": "routes, 16 x 16, readers need a key",
    "3": "sends of 1 KiB, 64 x 1",
    "4": "the same to Apache's broker",
}


class AccessBench(Bench):
    """What is switched on is access control."""

    def routes(self, row: str) -> None:
        """What do route lookups cost?"""
        readers = "true" if row == "2" else "false"
        settings = GUARDED | {"brokerSourceAddresses": "127.0.0.1", "authenticateReaders": readers}
        with ExitStack() as stack:
            servers = {
                side: stack.enter_context(
                    SkyrouteNameServer(side, self.scratch / f"{row}-{side}", config=settings if side == "on" else {})
                )
                for side in SIDES
            }
            _create_user(servers["on"].address)
            few = {
                side: stack.enter_context(Brokers(server.port, clusters=1, brokers=2, topics=100, first_cluster=4))
                for side, server in servers.items()
            }
            for brokers in few.values():
                brokers.register()
                self.load_pids.append(brokers.pid)

            def measure(side: Side) -> float:
                few[side].renew()
                key = KEY if side == "on" else None
                return read_routes(servers[side].port, 16, 16, seconds=self.seconds, topics=FEW_TOPICS, key=key).per_s

            self._compare(row, {side: server.pid for side, server in servers.items()}, measure)
        self.load_pids.clear()

    def sends(self, row: str) -> None:
        """What do sends cost?"""
        with self._brokers(row) as brokers:
            for side, broker in brokers.items():
                _create_topic(broker.address, ROOT if side == "on" else None)
            _create_user(brokers["on"].address)

            def measure(side: Side) -> float:
                words = (TOPIC, QUEUES, self.seconds, 64, 1, BODY_BYTES)
                return load_broker(brokers[side].port, "send", *words, key=KEY if side == "on" else None).per_s

            self._compare(row, {side: broker.pid for side, broker in brokers.items()}, measure)

    @contextmanager
    def _brokers(self, row: str) -> Iterator[dict[Side, ApacheBroker]]:
        kind = ApacheBroker if row == "4" else SkyrouteBroker
        with ExitStack() as stack:
            brokers: dict[Side, ApacheBroker] = {}
            for side in SIDES:
                home = self.scratch / f"{row}-{side}"
                names = stack.enter_context(SkyrouteNameServer(f"names {side}", home / "names"))
                brokers[side] = stack.enter_context(
                    kind(
                        f"{side}{row}",
                        home / "broker",
                        [names.address],
                        config={"mappedFileSizeCommitLog": str(1 << 30)} | (GUARDED if side == "on" else {}),
                        java_options=LARGE_HEAP,
                    )
                )
            yield brokers
            self.load_pids.clear()

    def _compare(self, row: str, pids: Mapping[Side, int], measure: Callable[[Side], float]) -> None:
        for side in SIDES:
            for _ in range(3 if row == "4" else 1):  # a JVM needs time to compile
                measure(side)
        self.compare(row, ROWS[row], Target("ratio at least", RATIO_MIN if row != "4" else 0.0), pids, measure)


def _create_topic(address: str, key: Key | None) -> None:
    queues = {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "perm": "6"}
    other = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    request = Request(17, {"topic": TOPIC, **queues, **other})
    _call(address, request if key is None else key.sign(request))


def _create_user(address: str) -> None:
    user = {"username": USER.name, "password": USER.secret, "userType": "Normal"}
    _call(address, ROOT.call(3001, json.dumps(user).encode(), username=USER.name))
    entry = {"resource": "Topic:*", "actions": ["Pub", "Sub"], "sourceIps": [], "decision": "Allow"}
    acl = {"subject": f"User:{USER.name}", "policies": [{"policyType": "Custom", "entries": [entry]}]}
    _call(address, ROOT.call(3006, json.dumps(acl).encode(), subject=f"User:{USER.name}"))


def _call(address: str, request: Request) -> None:
    with RawConnection(address) as line:
        reply = line.call(request)
    if reply.code != 0:
        raise RuntimeError(f"request {request.code} failed: {reply.remark}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.access", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each figure (7)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement (4)")
    parser.add_argument("--rows", default=",".join(ROWS), help="rows to measure (all)")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if a target is not met")
    arguments = parser.parse_args()
    for program in ("nsload", "nsreg", "brload"):
        build(program)
    rows = frozenset(arguments.rows.split(","))
    with tempfile.TemporaryDirectory(prefix="skyroute-bench-") as scratch:
        bench = AccessBench(arguments.rounds, arguments.seconds, rows, Path(scratch))
        for row in ROWS:
            if row not in rows:
                continue
            if row == "4":
                try:
                    fetch_jars()
                except PeerUnavailableError as error:
                    bench.say(f"row 4 left out: {error}")
                    continue
            (bench.routes if row in ("1", "2") else bench.sends)(row)
    print(table(bench.figures, ("off", "on")))
    print(f"\nOthers took up to {max(bench.noise, default=0):.0%} of the machine meanwhile.")
    return 1 if arguments.strict and any(figure.is_met is False for figure in bench.figures) else 0


if __name__ == "__main__":
    sys.exit(main())
