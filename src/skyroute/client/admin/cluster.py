"""Admin calls about brokers and name servers: state, settings, and the key-value config."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from skyroute.client.admin.arguments import check_settings, check_strings
from skyroute.client.admin.base import AdminBase, Failures, SomeFailedError, call_all, call_each
from skyroute.client.arguments import check_texts
from skyroute.client.errors import NotFoundError
from skyroute.errors import SkyrouteError
from skyroute.routing.topology import BrokerGroup
from skyroute.wire.calls.kv import ORDER_TOPICS
from skyroute.wire.calls.replication import (
    ReplicationStatus,
    decode_replication_status,
    encode_replication_status_query,
)
from skyroute.wire.calls.settings import (
    decode_broker_state,
    decode_kv_value,
    decode_settings,
    encode_broker_settings_query,
    encode_broker_settings_update,
    encode_broker_state_query,
    encode_expired_queues_cleaning,
    encode_kv_deletion,
    encode_kv_put,
    encode_kv_query,
    encode_name_server_settings_query,
    encode_name_server_settings_update,
    encode_unused_topics_cleaning,
)
from skyroute.wire.calls.topics import decode_write_permission, encode_write_permission
from skyroute.wire.command import Request, Response


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker with its state, or with the error that its state could not be read."""

    cluster: str
    name: str
    broker_id: int
    address: str
    state: Mapping[str, str]
    failure: SkyrouteError | None = None


@dataclass(frozen=True, slots=True)
class ServerProperties:
    """Settings or state by server address, and the errors of the servers that did not return theirs."""

    by_address: Mapping[str, Mapping[str, str]]
    failures: Failures


class ClusterAdmin(AdminBase):
    """Calls about brokers and name servers."""

    async def brokers(self, cluster: str | None = None) -> list[BrokerInfo]:
        """Return every broker of a cluster, or of all, with its state. `failure` is set where reading it failed.

        Raises:
            UnknownClusterError: there is no such cluster.
        """
        return await fetch_broker_states(self, await self.broker_groups(cluster))

    async def broker_state(self, address: str) -> dict[str, str]:
        """Return a broker's state: counters, rates and disk use, by Apache's names.

        Raises:
            BrokerRefusedError, RemotingError: the request failed.
        """
        check_texts(address=address)
        return decode_broker_state((await self.session.ask(address, encode_broker_state_query())).body)

    async def broker_states(self, *, broker: str | None = None, cluster: str | None = None) -> ServerProperties:
        """Return the state of one broker, or of all brokers of a cluster.

        Raises:
            UnknownClusterError: there is no such cluster.
            BrokerRefusedError, RemotingError: all requests failed.
        """
        addresses = await self.addresses(broker=broker, cluster=cluster, with_slaves=True)
        return ServerProperties(*await call_each(addresses, self.broker_state))

    async def replication_status(self, address: str) -> ReplicationStatus:
        """Return who follows a broker, or whom it follows.

        Raises:
            BrokerRefusedError, RemotingError: the request failed.
        """
        check_texts(address=address)
        return decode_replication_status((await self.session.ask(address, encode_replication_status_query())).body)

    async def replication_statuses(
        self, *, broker: str | None = None, cluster: str | None = None
    ) -> tuple[dict[str, ReplicationStatus], Failures]:
        """Return the replication of one broker, or of all masters of a cluster, and the failures, by address.

        Raises:
            UnknownClusterError: there is no such cluster.
            BrokerRefusedError, RemotingError: all requests failed.
        """
        return await call_each(await self.addresses(broker=broker, cluster=cluster), self.replication_status)

    async def broker_settings(self, *, broker: str | None = None, cluster: str | None = None) -> ServerProperties:
        """Return the settings of one broker, or of all brokers of a cluster.

        Raises:
            UnknownClusterError: there is no such cluster.
            BrokerRefusedError, RemotingError: all requests failed.
        """

        async def call(address: str) -> dict[str, str]:
            return decode_settings((await self.session.ask(address, encode_broker_settings_query())).body)

        addresses = await self.addresses(broker=broker, cluster=cluster, with_slaves=True)
        return ServerProperties(*await call_each(addresses, call))

    async def update_broker_settings(
        self,
        settings: Mapping[str, str],
        *,
        broker: str | None = None,
        cluster: str | None = None,
        with_slaves: bool = False,
    ) -> list[str]:
        """Change settings of one broker, or of a cluster's brokers, at run time; return the addresses that did.

        Raises:
            SomeFailedError: some requests failed.
            BrokerRefusedError, RemotingError: the only request failed.
        """
        check_settings(settings)
        addresses = await self.addresses(broker=broker, cluster=cluster, with_slaves=with_slaves)
        return await self._send_all(addresses, encode_broker_settings_update(settings))

    async def clean_expired_queues(self, *, broker: str | None = None, cluster: str | None = None) -> list[str]:
        """Delete consume queue files whose messages are gone, on one broker, a cluster or everywhere; return addresses.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        return await self._send_all(await self._any_addresses(broker, cluster), encode_expired_queues_cleaning())

    async def clean_unused_topics(self, *, broker: str | None = None, cluster: str | None = None) -> list[str]:
        """Delete the queues of topics that no longer exist, on one broker, a cluster or everywhere; return addresses.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        return await self._send_all(await self._any_addresses(broker, cluster), encode_unused_topics_cleaning())

    async def _any_addresses(self, broker: str | None, cluster: str | None) -> list[str]:
        if broker is not None or cluster is not None:
            return await self.addresses(broker=broker, cluster=cluster, with_slaves=True)
        return [address for group in await self.broker_groups(None) for address in group.addresses.values()]

    async def _send_all(self, addresses: list[str], request: Request) -> list[str]:
        async def call(address: str) -> Response:
            # A copy for each server: signing and numbering change the request.
            return await self.session.ask(address, Request(request.code, dict(request.fields), body=request.body))

        return list(await call_all(addresses, call))

    # ------------------------------------------------------------------------------------------------- name servers

    async def name_server_settings(self) -> ServerProperties:
        """Return the settings of all name servers.

        Raises:
            BrokerRefusedError, RemotingError: all requests failed.
        """
        responses, failures = await self._call_each_name_server(encode_name_server_settings_query())
        settings = {address: decode_settings(response.body) for address, response in responses.items()}
        return ServerProperties(settings, failures)

    async def update_name_server_settings(self, settings: Mapping[str, str]) -> list[str]:
        """Change settings of all name servers at run time; return the addresses that did.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        check_settings(settings)
        return list(await self._call_all_name_servers(encode_name_server_settings_update(settings)))

    async def forbid_writes(self, broker_name: str) -> dict[str, int]:
        """Make a broker's topics read-only in all routes; return the number of topics by name server.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        return await self._permit_writes(broker_name, allowed=False)

    async def allow_writes(self, broker_name: str) -> dict[str, int]:
        """Undo `forbid_writes`; return the number of topics by name server.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        return await self._permit_writes(broker_name, allowed=True)

    async def _permit_writes(self, broker_name: str, *, allowed: bool) -> dict[str, int]:
        check_texts(broker_name=broker_name)
        responses = await self._call_all_name_servers(encode_write_permission(broker_name, allowed=allowed))
        return {address: decode_write_permission(response) for address, response in responses.items()}

    async def _call_each_name_server(self, request: Request) -> tuple[dict[str, Response], dict[str, SkyrouteError]]:
        """Send a request to every name server; return responses and errors by address.

        Raises:
            SkyrouteError: there is one name server, and its request failed.
            SomeFailedError: all requests failed.
        """
        outcomes = await self.session.ask_every_name_server(request)
        responses = {address: outcome for address, outcome in outcomes if isinstance(outcome, Response)}
        failures = {address: outcome for address, outcome in outcomes if isinstance(outcome, SkyrouteError)}
        if failures and not responses:
            raise next(iter(failures.values())) if len(failures) == 1 else SomeFailedError((), failures)
        return responses, failures

    async def _call_all_name_servers(self, request: Request) -> dict[str, Response]:
        responses, failures = await self._call_each_name_server(request)
        if failures:
            raise SomeFailedError(responses, failures)
        return responses

    # --------------------------------------------------------------------------------------------- key-value config

    async def kv(self, namespace: str, key: str) -> str | None:
        """Return a value of the name servers' key-value config, or None.

        Raises:
            NoNameServerError: no name server responds.
        """
        check_texts(namespace=namespace, key=key)
        try:
            return decode_kv_value(await self.session.ask_name_server(encode_kv_query(namespace, key)))
        except NotFoundError:
            return None

    async def put_kv(self, namespace: str, key: str, value: str) -> list[str]:
        """Store a value in the key-value config of all name servers; return their addresses.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        check_texts(namespace=namespace, key=key)
        check_strings(value=value)
        return list(await self._call_all_name_servers(encode_kv_put(namespace, key, value)))

    async def delete_kv(self, namespace: str, key: str) -> list[str]:
        """Delete a value from the key-value config of all name servers; return their addresses.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        check_texts(namespace=namespace, key=key)
        return list(await self._call_all_name_servers(encode_kv_deletion(namespace, key)))

    async def order_config(self, topic: str) -> str | None:
        """Return the fixed queues of an ordered topic as `broker:queues;broker:queues`, or None."""
        check_texts(topic=topic)
        return await self.kv(ORDER_TOPICS, self._names.full(topic))

    async def put_order_config(self, topic: str, config: str) -> list[str]:
        """Fix the queues of an ordered topic, as `broker:queues;broker:queues`.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        check_texts(topic=topic, config=config)
        return await self.put_kv(ORDER_TOPICS, self._names.full(topic), config)

    async def delete_order_config(self, topic: str) -> list[str]:
        """Delete the fixed queues of an ordered topic.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        check_texts(topic=topic)
        return await self.delete_kv(ORDER_TOPICS, self._names.full(topic))


async def fetch_broker_states(admin: ClusterAdmin, groups: Iterable[BrokerGroup]) -> list[BrokerInfo]:
    """Return every broker of these groups with its state. The same group may come from several name servers."""
    known = {
        (group.cluster, group.name, broker_id): address
        for group in groups
        for broker_id, address in group.addresses.items()
    }
    states: dict[str, dict[str, str]] = {}
    failures: Failures = {}
    try:
        states, failures = await call_each(known.values(), admin.broker_state)
    except SomeFailedError as error:
        failures = error.failures
    except SkyrouteError as error:
        failures = dict.fromkeys(known.values(), error)
    return [
        BrokerInfo(*key, address, states.get(address, {}), failures.get(address))
        for key, address in sorted(known.items())
    ]
