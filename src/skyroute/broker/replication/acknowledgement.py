"""What a send to a synchronous master waits for."""

from collections.abc import Callable
from typing import Final

from skyroute.broker.config import BrokerConfig
from skyroute.broker.delivery.flush_wait import Flushed
from skyroute.broker.delivery.replica_wait import ReplicaWait
from skyroute.broker.replication.master import HaMaster
from skyroute.remoting.errors import RefusedError
from skyroute.wire.codes import ResponseCode

NOT_ENOUGH: Final = "in-sync replicas not enough"


class Acknowledgement:
    """Decides how many slaves must have a message, and refuses messages that too few could get."""

    def __init__(self, master: HaMaster, config: BrokerConfig) -> None:
        self._master = master
        self._config = config
        self.replica_wait = ReplicaWait(lambda: config.slave_timeout_s)
        master.on_acknowledged = self._advance

    def _advance(self) -> None:
        if self.replica_wait.waiting_count:
            self.replica_wait.advance(self._master.reached)

    def is_needed(self) -> bool:
        """Return whether sends wait for slaves."""
        return self._config.in_sync_replicas > 1

    def check(self) -> None:
        """Check that enough brokers are in sync for another message.

        Raises:
            RefusedError: too few are.
        """
        least = self._config.min_in_sync_replicas
        if least > 1 and (in_sync := self._master.in_sync) < least:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"{NOT_ENOUGH}: {in_sync} in sync (expected minInSyncReplicas={least})"
            )

    def wait_for(self, log_end: int, then: Callable[[Flushed], None]) -> None:
        """Call `then` once enough slaves have the log up to a position, or `slaveTimeout` is over."""
        config = self._config
        replicas = config.in_sync_replicas
        if config.auto_in_sync_replicas and replicas > 1:
            replicas = max(min(replicas, self._master.in_sync), config.min_in_sync_replicas)
        # A message that was just stored is on no slave: no need to count them.
        is_behind = replicas > 1 and self._master.proven_end < log_end
        if not is_behind and self._master.reached(replicas - 1) >= log_end:
            then(Flushed.DONE)
        else:
            self.replica_wait.wait_for(log_end, replicas - 1, then)
