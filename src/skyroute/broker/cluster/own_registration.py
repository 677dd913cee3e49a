"""The requests with which a broker registers itself and its topics."""

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from skyroute.broker.config import BrokerConfig
from skyroute.broker.identity import Identity
from skyroute.broker.tables.queue_mappings import QueueMappings
from skyroute.broker.tables.topics import Topics
from skyroute.routing.registration import Registration, TopicTable
from skyroute.routing.topology import Permission, QueueSettings, StaticMapping
from skyroute.wire.calls.registration import (
    Unregistration,
    encode_heartbeat,
    encode_registration,
    encode_unregistration,
    encode_version_query,
)
from skyroute.wire.calls.route import encode_topic_registration
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.command import Request

COMPRESS_FROM_BYTES: Final = 256 * 1024
IN_THREAD_FROM: Final = 2_000
"""From this number of topics on, a registration is encoded in a thread."""
_BOTH: Final = int(Permission.READ | Permission.WRITE)


class OwnRegistration:
    """Encodes registrations, announcements of topics, heartbeats and the unregistration of one broker."""

    def __init__(
        self, identity: Identity, topics: Topics, config: BrokerConfig, mappings: QueueMappings | None = None
    ) -> None:
        self._identity = identity
        self.broker_id = identity.broker_id
        """Changes with the role, in controller mode."""
        self.ha_address: str | None = None
        """Where slaves connect to; None if no port for them is open."""
        self._topics = topics
        self._config = config
        self._mappings = mappings
        self._encoded: tuple[object, Request] | None = None
        """The last registration of all topics, and the values it depends on."""
        self._encoding = asyncio.Lock()

    def single_topics(self, topics: Iterable[TopicConfig]) -> list[Request]:
        """Return one request (217) for each new or changed topic; none if they must be announced together."""
        limited = self._limited(topics)
        if not self._config.register_single_topics or self._summaries(limited):  # 217 has no mappings of static topics
            return []
        return [
            encode_topic_registration(
                topic.name,
                self._identity.name,
                QueueSettings(topic.read_queues, topic.write_queues, int(topic.permission), topic.sys_flag),
            )
            for topic in limited
        ]

    def announcement(self, topics: Iterable[TopicConfig]) -> Request:
        """Return one incremental registration of new and changed topics."""
        limited = self._limited(topics)
        return encode_registration(self._registration(self._summaries(limited)), limited)

    def version_query(self) -> Request:
        """Return the question whether a name server has an older version of the topics."""
        return encode_version_query(self._registration(), self._topics.version)

    def heartbeat(self) -> Request:
        """Return a request that renews the lease."""
        if self._config.supports_old_name_servers:
            return self.version_query()
        return encode_heartbeat(self._registration())

    async def full(self) -> Request:
        """Return the registration of all topics, encoded again only if it changed."""
        async with self._encoding:
            always = self._config.compress_registration
            role = self.broker_id, self.ha_address
            depends_on = (self._topics.version, self._config.broker_permission, always, role)
            if self._encoded is None or self._encoded[0] != depends_on:
                topics = list(self._topics.all().values())
                registration = self._registration(self._summaries(topics))
                if len(topics) >= IN_THREAD_FROM:
                    request = await asyncio.to_thread(self._encode_all, registration, topics, always=always)
                else:
                    request = self._encode_all(registration, topics, always=always)
                self._encoded = depends_on, request
            return self._encoded[1]

    def unregistration(self) -> Request:
        """Return the request that removes this broker."""
        own = self._identity
        return encode_unregistration(Unregistration(own.cluster, own.name, self.broker_id, own.address))

    def _summaries(self, topics: Iterable[TopicConfig]) -> dict[str, StaticMapping]:
        """Return what name servers get of the static topics among some topics."""
        if not self._mappings:
            return {}
        found = ((topic.name, self._mappings.get(topic.name)) for topic in topics)
        return {name: mapping.summary() for name, mapping in found if mapping is not None}

    def _registration(self, mappings: Mapping[str, StaticMapping] = MappingProxyType({})) -> Registration:
        own, config = self._identity, self._config
        acting = config.acting_master_enabled
        return Registration(
            cluster=own.cluster,
            broker_name=own.name,
            broker_id=self.broker_id,
            address=own.address,
            ha_address=self.ha_address,
            acting_master=acting,
            lease_s=config.lease_s if acting else None,
            table=TopicTable(self._topics.version, mappings=mappings),
        )

    def _limited(self, topics: Iterable[TopicConfig]) -> list[TopicConfig]:
        """Return topics with their permissions limited to those of the broker."""
        allowed = self._config.broker_permission
        if allowed & _BOTH == _BOTH:
            return list(topics)
        return [msgspec.structs.replace(topic, permission=int(topic.permission) & allowed) for topic in topics]

    def _encode_all(self, registration: Registration, topics: Iterable[TopicConfig], *, always: bool) -> Request:
        """Encode a registration, compressed if it is long and compression loses no field."""
        limited = self._limited(topics)
        request = encode_registration(registration, limited)
        if not (always or len(request.body) >= COMPRESS_FROM_BYTES):
            return request
        if any(topic.sys_flag or topic.ordered for topic in limited):
            return request
        return encode_registration(registration, limited, compressed=True)
