"""The brokers of `skyroute up --replicas`: one process each, in a group whose master the controller elects."""

import asyncio
import ctypes
import logging
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

from skyroute.cli.logs import LogSettings
from skyroute.cli.server_process import print_line
from skyroute.controller.events import GroupEvent, MasterElected, MasterLost, SyncSetChanged
from skyroute.controller.server import ControllerServer
from skyroute.controller.state import GroupState
from skyroute.errors import SkyrouteError
from skyroute.nameserver.server import NameServer

log = logging.getLogger(__name__)

START_S: Final = 60.0
"""How long the brokers may take to start, and the group to have a master."""
RESTART_S: Final = 3.0
"""Pause before a broker that ended is started again."""
STOP_S: Final = 30.0
"""How long a broker may take to stop before it is killed."""
_POLL_S: Final = 0.05
_BOOT_LINE: Final = re.compile(r"The broker\[.*, (\S+)\] boot success")
_PR_SET_PDEATHSIG: Final = 1


class ReplicaFailedError(SkyrouteError):
    """A broker of the group did not start."""


class BrokerProcess:
    """One broker as a process. It is started again when it ends."""

    def __init__(self, number: int, settings: Mapping[str, str], log_settings: LogSettings) -> None:
        self.number = number
        self.address = ""
        self._settings = settings
        self._log_settings = log_settings
        self._process: Process | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start the broker and wait until it serves.

        Raises:
            ReplicaFailedError: it ended, or took too long.
        """
        await self._boot()
        self._watch = asyncio.create_task(self._restart())

    async def _boot(self) -> None:
        words = ["--log-level", self._log_settings.level, "--log-format", self._log_settings.format]
        if self._log_settings.file is not None:
            words += ["--log-file", f"{self._log_settings.file}.broker-{self.number}"]
        for key, value in self._settings.items():
            words += ["-D", f"{key}={value}"]
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "skyroute", "broker", *words),
            stdin=DEVNULL,
            stdout=PIPE,
            start_new_session=True,  # an interrupt from the terminal is for this process, which stops the brokers
            preexec_fn=_stop_with_parent(),
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                while line := await process.stdout.readline():
                    found = _BOOT_LINE.search(line.decode(errors="replace"))
                    if found is not None:
                        self.address = found[1]
                        return
                code = await process.wait()
        except TimeoutError:
            raise ReplicaFailedError(f"broker {self.number} did not start within {START_S:g} s") from None
        raise ReplicaFailedError(
            f"broker {self.number} did not start ({_end(code)}); its message is above. If a port is in use, choose "
            "another --port (0: any free ports)"
        )

    async def _restart(self) -> None:
        while True:
            assert self._process is not None
            code = await self._process.wait()
            print_line(f"Broker {self.address} ended ({_end(code)}); starts again in {RESTART_S:g} s")
            await asyncio.sleep(RESTART_S)
            try:
                await self._boot()
            except ReplicaFailedError as error:
                log.warning("broker not started again reason=%s", error)
                await self._end_process()
            else:
                print_line(f"Broker {self.address} runs again (process {self.pid})")

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        await self._end_process()

    async def _end_process(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


class ReplicaGroup:
    """The brokers of one group, started after the name server and the controller in this process."""

    def __init__(
        self,
        replicas: Collection[Mapping[str, str]],
        name_server: NameServer,
        controller: ControllerServer,
        addresses: Callable[[], Mapping[str, str]],
        log_settings: LogSettings,
    ) -> None:
        """Take the settings of each broker, the first one first.

        Args:
            replicas: Settings of each broker. All have the same `brokerName`.
            name_server: The name server with which they register.
            controller: The controller that elects their master.
            addresses: Returns the settings that are known once both have started.
            log_settings: Level and format of their logs.
        """
        self._replicas = tuple(replicas)
        self._name = self._replicas[0]["brokerName"]
        self._name_server = name_server
        self._controller = controller
        self._addresses = addresses
        self._log_settings = log_settings
        self._is_ready = False
        self.brokers: list[BrokerProcess] = []

    async def start(self) -> None:
        """Start the brokers and wait until one is master.

        Raises:
            ReplicaFailedError: a broker did not start, or none became master in time.
        """
        known = self._addresses()
        self.brokers = [
            BrokerProcess(number, {**settings, **known}, self._log_settings)
            for number, settings in enumerate(self._replicas, 1)
        ]
        try:
            await self.brokers[0].start()
            # The first broker may have messages from before the group: then only it can be the first master.
            await self._until(lambda group: group.had_master)
            await asyncio.gather(*(each.start() for each in self.brokers[1:]))
            await self._until(self._serves)
        except BaseException:
            await self.stop()
            raise
        self._is_ready = True

    async def _until(self, is_reached: Callable[[GroupState], bool]) -> None:
        try:
            async with asyncio.timeout(START_S):
                while (group := self._controller.groups.find(self._name)) is None or not is_reached(group):  # noqa: ASYNC110 - neither the controller nor the name server has an event for it
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ReplicaFailedError(f"broker group {self._name} has no master after {START_S:g} s") from None

    def _serves(self, group: GroupState) -> bool:
        """Return whether the master is alive and clients find it."""
        living = self._controller.heartbeats.live(group.cluster, self._name, self._controller.clock.monotonic())
        routed = self._name_server.table.group(self._name)
        return (
            group.master in living.progress
            and routed is not None
            and routed.addresses.get(0) == group.address_of(group.master)
        )

    @property
    def master(self) -> BrokerProcess | None:
        """The broker that is master now; None if there is none."""
        group = self._controller.groups.find(self._name)
        address = None if group is None else group.address_of(group.master)
        return next((each for each in self.brokers if each.address == address), None)

    async def stop(self) -> None:
        """Stop the slaves before the master, so that no other master is elected."""
        self._is_ready = False
        master = self.master
        await asyncio.gather(*(each.stop() for each in self.brokers if each is not master))
        if master is not None:
            await master.stop()

    def print_changes(self, events: Collection[GroupEvent]) -> None:
        """Print who is master and who is in sync, once the group is ready."""
        if not self._is_ready:
            return
        for event in events:
            match event:
                case MasterElected():
                    print_line(
                        f"Master       {event.address}  "
                        f"({event.broker_name}, epoch {event.master_epoch}; reason: {event.cause.value})"
                    )
                case MasterLost():
                    print_line(f"No master    no replica in sync is alive ({event.broker_name})")
                case SyncSetChanged():
                    print_line(f"In sync      {len(event.after)} of {len(self.brokers)}  ({event.broker_name})")


def _end(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _stop_with_parent() -> Callable[[], object] | None:
    """Return what a child calls so that the system stops it when this process is killed; None if there is no way."""
    if sys.platform != "linux":
        return None
    set_process_option = ctypes.CDLL(None).prctl  # loaded before the fork
    return lambda: set_process_option(_PR_SET_PDEATHSIG, signal.SIGTERM)
