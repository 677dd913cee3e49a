"""Asks brokers whether they can evaluate a condition, before anybody relies on it."""

import logging
from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from skyroute.client.consuming.subscription import SQL92
from skyroute.client.errors import BrokerRefusedError, FlowControlError, GoAwayError, SystemBusyError
from skyroute.client.session.session import Session
from skyroute.client.session.shared_task import outcome_of
from skyroute.errors import SkyrouteError
from skyroute.wire.calls.clients import Subscription, encode_client_check

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)

NOT_NOW: Final = (SystemBusyError, FlowControlError, GoAwayError)
"""Refusals that say nothing of what was asked."""


class Acceptance:
    """What subscribing gives back. Awaiting it tells whether brokers take the subscription; nobody has to.

    Examples:
        >>> await consumer.subscribe("Orders", sql("amount > 100"))

    Raises:
        BrokerRefusedError: when awaited, if a broker cannot evaluate an SQL expression; the remark says why.
    """

    def __init__(self, asking: "asyncio.Task[SkyrouteError | None] | None" = None) -> None:
        """`asking` ends with why it is refused, or None; without it there is nothing to ask."""
        self._asking = asking

    def __await__(self) -> Generator[Any, None, None]:
        return self._outcome().__await__()

    async def _outcome(self) -> None:
        if self._asking is not None and (error := await outcome_of(self._asking)) is not None:
            raise error


def is_condition(subscription: Subscription) -> bool:
    """Return whether brokers have something to evaluate that they may not be able to."""
    return subscription.expression_type == SQL92


async def check_expression(session: Session, group: str, subscription: Subscription) -> None:
    """Have a broker of the topic look at a condition, if any is known.

    Raises:
        BrokerRefusedError: it cannot evaluate it.
        RemotingError: it does not answer.
    """
    route = session.routes.cached(subscription.topic)
    address = session.routes.any_address(route.groups[0].name) if route is not None and route.groups else None
    if address is not None:
        await session.ask(address, encode_client_check(session.client_id, group, subscription, session.namespace))


async def find_refusal(session: Session, group: str, subscription: Subscription) -> SkyrouteError | None:
    """Return why a broker of the topic cannot evaluate a condition; None if it can, or cannot be asked now."""
    with suppress(SkyrouteError):  # whoever looks for our share of the topic says so
        await session.routes.find(subscription.topic)
    try:
        await check_expression(session, group, subscription)
    except SkyrouteError as error:
        if isinstance(error, BrokerRefusedError) and not isinstance(error, NOT_NOW):
            log.warning("subscription refused group=%s topic=%s cause=%s", group, subscription.topic, error)
            return error
        log.info("subscription not checked group=%s topic=%s cause=%s", group, subscription.topic, error)
    return None
