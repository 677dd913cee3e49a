"""Requests of operators: write permissions, topic deletion, settings."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.server_events import Publish, Record, SettingsChanged
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.remoting.stepwise import StepRunner, Steps
from skyroute.routing.table import RouteTable
from skyroute.settings.updates import update_settings
from skyroute.wire.command import Request, Response
from skyroute.wire.fields import optional_name, required_name

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdminHandlers:
    """Logs every change with the address of its sender."""

    table: RouteTable
    config: NameServerConfig
    publish: Publish
    on_config_changed: Callable[[], None]
    record: Record
    step_runner: StepRunner

    def forbid_writes(self, request: Request, peer: Peer) -> Response:
        broker_name = required_name(request.fields, "brokerName")
        count, events = self.table.forbid_writes(broker_name)
        log.info("writes forbidden by operator peer=%s broker=%s topics=%d", peer.address, broker_name, count)
        self.publish(events)
        return Response(fields={"wipeTopicCount": str(count)})

    def restore_writes(self, request: Request, peer: Peer) -> Response:
        broker_name = required_name(request.fields, "brokerName")
        count, events = self.table.restore_writes(broker_name)
        log.info("writes restored by operator peer=%s broker=%s topics=%d", peer.address, broker_name, count)
        self.publish(events)
        return Response(fields={"addTopicCount": str(count)})

    def delete_topic(self, request: Request, peer: Peer) -> Answer:
        topic = required_name(request.fields, "topic")
        cluster = optional_name(request.fields, "clusterName")
        log.info("topic deleted by operator peer=%s topic=%s cluster=%s", peer.address, topic, cluster)
        return self.step_runner.answer(self._delete_topic(topic, cluster))

    def _delete_topic(self, topic: str, cluster: str | None) -> Steps:
        while events := self.table.delete_topic(topic, cluster):
            self.publish(events)
            if self.table.serving(topic):
                yield
        return Response()

    def get_config(self, _request: Request, _peer: Peer) -> Response:
        return Response(body=self.config.render().encode())

    def update_config(self, request: Request, peer: Peer) -> Answer:
        return OrderedResponse(self._update_config(request, peer))

    async def _update_config(self, request: Request, peer: Peer) -> Response:
        if changed := await update_settings(self.config, request, peer):
            self.record([SettingsChanged(changed, peer.address)])
        self.on_config_changed()
        return Response()
