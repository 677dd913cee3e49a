"""Admin calls about controllers: masters, sync state sets, epochs, and the settings of controllers."""

from collections.abc import Collection, Iterable, Mapping

from skyroute.client.admin.arguments import check_settings
from skyroute.client.admin.base import call_each
from skyroute.client.admin.cluster import ClusterAdmin, ServerProperties
from skyroute.client.arguments import check_flags, check_texts, check_texts_or_none, listed
from skyroute.client.errors import ArgumentError, ClientError
from skyroute.errors import SkyrouteError
from skyroute.wire.calls.broker_epochs import EpochHistory, decode_epochs, encode_epochs_query
from skyroute.wire.calls.controller import (
    Cleanup,
    ElectionRequest,
    encode_cleanup,
    encode_controllers_query,
    encode_election_request,
    encode_sync_state_query,
)
from skyroute.wire.calls.controller_responses import (
    ControllerFields,
    MasterFields,
    ReplicaGroup,
    decode_controllers,
    decode_master,
    decode_sync_states,
)
from skyroute.wire.calls.settings import (
    decode_settings,
    encode_controller_settings_query,
    encode_controller_settings_update,
)
from skyroute.wire.command import Request, Response


class NoControllerError(ClientError):
    """None of the controllers responds, or none of them knows a leader."""

    retryable = True


class ControllerAdmin(ClusterAdmin):
    """Calls about controllers. `controllers` is one address or several, separated by semicolons."""

    async def controllers(self, controllers: str) -> ControllerFields:
        """Return which controller leads, as the first one that knows a leader says.

        Raises:
            NoControllerError: no controller responds, or none knows a leader.
        """
        reasons: list[str] = []
        for address in _addresses(controllers):
            try:
                found = decode_controllers(await self.session.ask(address, encode_controllers_query()))
            except SkyrouteError as error:
                reasons.append(str(error) if address in str(error) else f"{address}: {error}")
                continue
            if found.leader_address:
                return found
            reasons.append(f"{address} knows no leader")
        raise NoControllerError(f"no leading controller: {'; '.join(reasons)}")

    async def replicas(self, controllers: str, broker_names: Iterable[str]) -> dict[str, ReplicaGroup]:
        """Return master, epochs and replicas of broker groups by name; unknown groups are left out.

        Raises:
            NoControllerError: there is no leading controller.
            BrokerRefusedError, RemotingError: the request failed.
        """
        names = listed("broker_names", broker_names, "broker names")
        for name in names:
            check_texts(**{"each of broker_names": name})
        return decode_sync_states((await self._ask_leader(controllers, encode_sync_state_query(names))).body)

    async def elect_master(
        self, controllers: str, cluster: str, broker_name: str, broker_id: int | None = None
    ) -> MasterFields:
        """Make a replica the master, or let the controller choose one if the group has none; return the master.

        Raises:
            NoControllerError: there is no leading controller.
            BrokerRefusedError: the replica is not alive, not in the sync state set, or is the master already.
        """
        check_texts(cluster=cluster, broker_name=broker_name)
        if broker_id is not None:
            _check_broker_id(broker_id=broker_id)
        asked = ElectionRequest(cluster, broker_name, broker_id, designate=broker_id is not None)
        response = await self._ask_leader(controllers, encode_election_request(asked, self._now_ms()))
        return decode_master(response.fields)

    async def remove_replicas(
        self,
        controllers: str,
        broker_name: str,
        broker_ids: Collection[int] | None = None,
        *,
        cluster: str | None = None,
        living: bool = False,
    ) -> None:
        """Remove replicas of a group, or the whole group, from the controllers. Living ones only with `living`.

        Raises:
            NoControllerError: there is no leading controller.
            BrokerRefusedError: the group is unknown, or a replica is alive.
        """
        check_texts(broker_name=broker_name)
        check_texts_or_none(cluster=cluster)
        check_flags(living=living)
        ids = None if broker_ids is None else frozenset(listed("broker_ids", broker_ids, "broker ids"))
        for broker_id in ids or ():
            _check_broker_id(**{"each of broker_ids": broker_id})
        if ids is not None and not ids:
            raise ArgumentError("broker_ids is empty: expected ids, or None for the whole group")
        await self._ask_leader(controllers, encode_cleanup(Cleanup(cluster, broker_name, ids, living), self._now_ms()))

    async def broker_epochs(self, address: str) -> EpochHistory:
        """Return the epochs of a broker's log.

        Raises:
            BrokerRefusedError: the broker is not in controller mode.
            RemotingError: the request failed.
        """
        check_texts(address=address)
        return decode_epochs((await self.session.ask(address, encode_epochs_query())).body)

    async def controller_settings(self, controllers: str) -> ServerProperties:
        """Return the settings of controllers.

        Raises:
            BrokerRefusedError, RemotingError: all requests failed.
        """

        async def call(address: str) -> dict[str, str]:
            return decode_settings((await self.session.ask(address, encode_controller_settings_query())).body)

        return ServerProperties(*await call_each(_addresses(controllers), call))

    async def update_controller_settings(self, controllers: str, settings: Mapping[str, str]) -> list[str]:
        """Change settings of controllers at run time; return the addresses that did.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        check_settings(settings)
        return await self._send_all(_addresses(controllers), encode_controller_settings_update(settings))

    async def _ask_leader(self, controllers: str, request: Request) -> Response:
        return await self.session.ask((await self.controllers(controllers)).leader_address, request)

    def _now_ms(self) -> int:
        return int(self.session.clock.wall() * 1000)


def _addresses(controllers: str) -> list[str]:
    check_texts(controllers=controllers)
    found = [address for address in map(str.strip, controllers.split(";")) if address]
    if not found:
        raise ArgumentError(f"controllers is {controllers!r}: expected addresses like 10.0.0.1:9878;10.0.0.2:9878")
    return found


def _check_broker_id(**values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 63:
            raise ArgumentError(f"{name} is {value!r}: expected a number from 1")
