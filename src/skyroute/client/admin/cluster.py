"""Administration of brokers and name servers: their state, their settings, and the key-value config."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from skyroute.client.admin.base import AdminBase, Failures, SomeFailedError, call_all, call_each
from skyroute.client.errors import NotFoundError
from skyroute.errors import SkyrouteError
from skyroute.routing.topology import BrokerGroup
from skyroute.wire.calls.kv import ORDER_TOPICS
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
    """A broker, and what it says of its state, or why it says nothing."""

    cluster: str
    name: str
    broker_id: int
    address: str
    state: Mapping[str, str]
    failure: SkyrouteError | None = None


@dataclass(frozen=True, slots=True)
class ServerProperties:
    """Settings, or the state, by the address of the server whose they are, and the servers that did not tell theirs."""

    by_address: Mapping[str, Mapping[str, str]]
    failures: Failures


class ClusterAdmin(AdminBase):
    """Calls about brokers and name servers."""

    async def brokers(self, cluster: str | None = None) -> list[BrokerInfo]:
        """Return every broker of a cluster, or of all, with its state. One that does not answer has a `failure`.

        Raises:
            UnknownClusterError: there is no such cluster.
        """
        return await fetch_broker_states(self, await self.broker_groups(cluster))

    async def broker_state(self, address: str) -> dict[str, str]:
        """Return what a broker says of its state: counters, rates, disk, by the names it gives them.

        Raises:
            BrokerRefusedError, RemotingError: it does not say.
        """
        return decode_broker_state((await self.session.ask(address, encode_broker_state_query())).body)

    async def broker_states(self, *, broker: str | None = None, cluster: str | None = None) -> ServerProperties:
        """Return the state of one broker, or of all brokers of a cluster.

        Raises:
            UnknownClusterError: there is no such cluster.
            BrokerRefusedError, RemotingError: none of them says.
        """
        addresses = await self.addresses(broker=broker, cluster=cluster, with_slaves=True)
        return ServerProperties(*await call_each(addresses, self.broker_state))

    async def broker_settings(self, *, broker: str | None = None, cluster: str | None = None) -> ServerProperties:
        """Return the settings of one broker, or of all brokers of a cluster.

        Raises:
            UnknownClusterError: there is no such cluster.
            BrokerRefusedError, RemotingError: none of them tells.
        """

        async def ask(address: str) -> dict[str, str]:
            return decode_settings((await self.session.ask(address, encode_broker_settings_query())).body)

        addresses = await self.addresses(broker=broker, cluster=cluster, with_slaves=True)
        return ServerProperties(*await call_each(addresses, ask))

    async def update_broker_settings(
        self,
        settings: Mapping[str, str],
        *,
        broker: str | None = None,
        cluster: str | None = None,
        with_slaves: bool = False,
    ) -> list[str]:
        """Change settings of one broker, or of a cluster's, while they run; return who did.

        Raises:
            SomeFailedError: some did not.
            BrokerRefusedError, RemotingError: it was one, and it did not.
        """
        addresses = await self.addresses(broker=broker, cluster=cluster, with_slaves=with_slaves)
        return await self._order(addresses, encode_broker_settings_update(settings))

    async def clean_expired_queues(self, *, broker: str | None = None, cluster: str | None = None) -> list[str]:
        """Have one broker, those of a cluster or all drop the files of queues whose messages are gone.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: not all did.
        """
        return await self._order(await self._any(broker, cluster), encode_expired_queues_cleaning())

    async def clean_unused_topics(self, *, broker: str | None = None, cluster: str | None = None) -> list[str]:
        """Have one broker, those of a cluster or all drop the queues of topics that they no longer have.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: not all did.
        """
        return await self._order(await self._any(broker, cluster), encode_unused_topics_cleaning())

    async def _any(self, broker: str | None, cluster: str | None) -> list[str]:
        if broker is not None or cluster is not None:
            return await self.addresses(broker=broker, cluster=cluster, with_slaves=True)
        return [address for group in await self.broker_groups(None) for address in group.addresses.values()]

    async def _order(self, addresses: list[str], request: Request) -> list[str]:
        async def ask(address: str) -> Response:
            # Each has its own copy: signing and numbering write into it.
            return await self.session.ask(address, Request(request.code, dict(request.fields), body=request.body))

        return list(await call_all(addresses, ask))

    # ------------------------------------------------------------------------------------------------- name servers

    async def name_server_settings(self) -> ServerProperties:
        """Return the settings of all name servers.

        Raises:
            BrokerRefusedError, RemotingError: none of them tells.
        """
        answers, failures = await self._ask_name_servers(encode_name_server_settings_query())
        return ServerProperties(
            {address: decode_settings(answer.body) for address, answer in answers.items()}, failures
        )

    async def update_name_server_settings(self, settings: Mapping[str, str]) -> list[str]:
        """Change settings of all name servers while they run; return who did.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: not all did.
        """
        return list(await self._tell_name_servers(encode_name_server_settings_update(settings)))

    async def forbid_writes(self, broker_name: str) -> dict[str, int]:
        """Have all name servers show a broker's topics as not writable; return how many, by name server.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: not all did.
        """
        answers = await self._tell_name_servers(encode_write_permission(broker_name, allowed=False))
        return {address: decode_write_permission(answer) for address, answer in answers.items()}

    async def allow_writes(self, broker_name: str) -> dict[str, int]:
        """Have all name servers show a broker's topics as writable again; return how many, by name server.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: not all did.
        """
        answers = await self._tell_name_servers(encode_write_permission(broker_name, allowed=True))
        return {address: decode_write_permission(answer) for address, answer in answers.items()}

    async def _ask_name_servers(self, request: Request) -> tuple[dict[str, Response], dict[str, SkyrouteError]]:
        """Ask all.

        Raises:
            SkyrouteError: it was just one, and it failed.
            SomeFailedError: all failed.
        """
        outcomes = await self.session.ask_every_name_server(request)
        answers = {address: outcome for address, outcome in outcomes if isinstance(outcome, Response)}
        failures = {address: outcome for address, outcome in outcomes if isinstance(outcome, SkyrouteError)}
        if failures and not answers:
            raise next(iter(failures.values())) if len(failures) == 1 else SomeFailedError((), failures)
        return answers, failures

    async def _tell_name_servers(self, request: Request) -> dict[str, Response]:
        answers, failures = await self._ask_name_servers(request)
        if failures:
            raise SomeFailedError(answers, failures)
        return answers

    # --------------------------------------------------------------------------------------------- key-value config

    async def kv(self, namespace: str, key: str) -> str | None:
        """Return a value that the name servers keep, or None.

        Raises:
            NoNameServerError: none answers.
        """
        try:
            return decode_kv_value(await self.session.ask_name_server(encode_kv_query(namespace, key)))
        except NotFoundError:
            return None

    async def put_kv(self, namespace: str, key: str, value: str) -> list[str]:
        """Have all name servers keep a value; return who does.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: not all do.
        """
        return list(await self._tell_name_servers(encode_kv_put(namespace, key, value)))

    async def delete_kv(self, namespace: str, key: str) -> list[str]:
        """Have all name servers forget a value; return who did.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: not all did.
        """
        return list(await self._tell_name_servers(encode_kv_deletion(namespace, key)))

    async def order_config(self, topic: str) -> str | None:
        """Return where an ordered topic lives, as `broker:queues;broker:queues`, or None if nothing is said of it."""
        return await self.kv(ORDER_TOPICS, topic)

    async def put_order_config(self, topic: str, config: str) -> list[str]:
        """Say where an ordered topic lives, as `broker:queues;broker:queues`.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: not all name servers took it.
        """
        return await self.put_kv(ORDER_TOPICS, topic, config)

    async def delete_order_config(self, topic: str) -> list[str]:
        """Say no more where an ordered topic lives.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: not all name servers did.
        """
        return await self.delete_kv(ORDER_TOPICS, topic)


async def fetch_broker_states(admin: ClusterAdmin, groups: Iterable[BrokerGroup]) -> list[BrokerInfo]:
    """Return every broker of these groups with its state. A group may be given more than once, by several servers."""
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
