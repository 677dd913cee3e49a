"""Requests to commit, roll back or check a transaction."""

import asyncio
from collections.abc import Awaitable

from skyroute.access.resources import Action
from skyroute.broker.appender import Appender
from skyroute.broker.handlers.access_checks import RequireTopic
from skyroute.broker.identity import Identity
from skyroute.broker.transactions import CheckTopic, Transactions
from skyroute.message.errors import MessageIdError
from skyroute.message.message_id import decode_offset_id
from skyroute.remoting.dispatch import Answer, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.transaction import decode_end_transaction, decode_resume_check
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response


class TransactionHandlers:
    """Ends transactions, and resumes checks of a half message."""

    def __init__(
        self,
        transactions: Transactions,
        appender: Appender,
        identity: Identity,
        require: RequireTopic | None = None,
    ) -> None:
        self._transactions = transactions
        self._appender = appender
        self._identity = identity
        self._require = require
        self._is_due = False

    def end(self, request: Request, peer: Peer) -> Answer:
        """Commit or roll back a transaction; respond once no further check can follow, even after a crash."""
        if self._identity.broker_id != 0:
            raise RefusedError(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave does not end transactions")
        order, now_ms = decode_end_transaction(request), self._appender.now_ms()
        self._transactions.end(order, now_ms, self._check(Action.PUB, peer))
        if request.is_oneway:
            # All transactions that end in one turn of the loop share one op message.
            if not self._is_due:
                self._is_due = True
                asyncio.get_running_loop().call_soon(self._write_done)
            return Response()
        appended = self._transactions.write_op_messages()
        wait = None if appended is None else self._appender.until_durable(appended)
        return Response() if wait is None else _respond_after(wait)

    def _check(self, action: Action, peer: Peer) -> CheckTopic | None:
        require = self._require
        return None if require is None else lambda topic: require(topic, action, peer)

    def _write_done(self) -> None:
        self._is_due = False
        self._transactions.write_op_messages()

    def resume(self, request: Request, peer: Peer) -> Response:
        """Check again a half message whose checks were exhausted."""
        try:
            message_id = decode_offset_id(decode_resume_check(request))
        except MessageIdError as error:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self._transactions.resume(message_id.log_position, self._check(Action.UPDATE, peer))
        return Response()


async def _respond_after(wait: Awaitable[None]) -> Response:
    await wait
    return Response()
