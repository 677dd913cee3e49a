"""The key-value config of operators, which includes the order config of topics."""

from dataclasses import dataclass

from skyroute.nameserver.kv_config import KvConfig
from skyroute.nameserver.server_events import KvChanged, Record
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.remoting.stepwise import StepRunner, Steps
from skyroute.wire.calls.kv import ORDER_TOPICS, KvKey, check_order_config, decode_kv_key
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import FieldError
from skyroute.wire.fields import required_text


@dataclass(frozen=True, slots=True)
class KvHandlers:
    """Handlers of the key-value config. A change is on disk before its response is sent."""

    kv: KvConfig
    record: Record
    step_runner: StepRunner

    def put(self, request: Request, peer: Peer) -> Answer:
        where = decode_kv_key(request)
        value = request.fields.get("value")
        if value is None:
            raise FieldError("value is required")
        if where.namespace == ORDER_TOPICS:
            check_order_config(value)
        return OrderedResponse(self._put(where, value, peer))

    async def _put(self, where: KvKey, value: str, peer: Peer) -> Response:
        before = await self.kv.put(where.namespace, where.key, value)
        self._record_change(KvChanged(where.namespace, where.key, before, value, peer.address))
        return Response()

    def get(self, request: Request, _peer: Peer) -> Response:
        where = decode_kv_key(request)
        value = self.kv.get(where.namespace, where.key)
        if value is None:
            remark = f"No config item, Namespace: {where.namespace[:255]} Key: {where.key[:255]}"
            return Response(ResponseCode.QUERY_NOT_FOUND, remark)
        return Response(fields={"value": value})

    def delete(self, request: Request, peer: Peer) -> Answer:
        return OrderedResponse(self._delete(decode_kv_key(request), peer))

    async def _delete(self, where: KvKey, peer: Peer) -> Response:
        before = await self.kv.delete(where.namespace, where.key)
        self._record_change(KvChanged(where.namespace, where.key, before, None, peer.address))
        return Response()

    def list_namespace(self, request: Request, _peer: Peer) -> Answer:
        namespace = required_text(request.fields, "namespace")
        return self.step_runner.answer(self._list_namespace(namespace))

    def _list_namespace(self, namespace: str) -> Steps:
        body = yield from self.kv.write_namespace(namespace)
        if body is None:
            return Response(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace[:255]}")
        return Response(body=body)

    def _record_change(self, change: KvChanged) -> None:
        if change.before != change.after:
            self.record([change])
