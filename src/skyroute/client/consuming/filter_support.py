"""Checks that a broker can evaluate an SQL filter, before the filter takes effect."""

import logging
from collections.abc import Callable, Generator
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
"""Refusals because of the broker's load or shutdown, not because of the filter."""


class PendingSubscription:
    """The result of `subscribe`. Awaiting it is optional, and waits until a broker has accepted the filter.

    Examples:
        >>> await consumer.subscribe("Orders", sql("amount > 100"))

    Raises:
        BrokerRefusedError: when awaited, if a broker cannot evaluate the SQL filter; the remark has the reason.
    """

    def __init__(self, check: "asyncio.Task[SkyrouteError | None] | None" = None) -> None:
        """`check` returns why the filter is refused, or None; without it there is nothing to wait for."""
        self._check = check

    def __await__(self) -> Generator[Any, None, None]:
        return self._outcome().__await__()

    async def _outcome(self) -> None:
        if self._check is not None and (error := await outcome_of(self._check)) is not None:
            raise error


class FilterChecks:
    """The SQL filters of one running consumer that a broker is checking, one for each topic."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._pending: dict[str, Subscription] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def start(self, subscription: Subscription, apply: Callable[[], None]) -> PendingSubscription:
        """Check a filter in the background, and call `apply` if a broker accepts it.

        `apply` is not called if the topic was subscribed to or unsubscribed from again meanwhile.
        """
        self._pending[subscription.topic] = subscription
        return PendingSubscription(self._session.spawn(self._check(subscription, apply), name="filter check"))

    def cancel(self, topic: str) -> None:
        """Do not apply the filter of a topic, whatever the broker says."""
        self._pending.pop(topic, None)

    def clear(self) -> None:
        """Do not apply any filter that is being checked."""
        self._pending.clear()

    async def _check(self, subscription: Subscription, apply: Callable[[], None]) -> SkyrouteError | None:
        refusal = await find_refusal(self._session, self._group, subscription)
        if self._pending.get(subscription.topic) is not subscription:
            return refusal
        del self._pending[subscription.topic]
        if refusal is None:
            try:
                apply()
            except SkyrouteError as error:
                log.warning("subscription refused group=%s topic=%s reason=%s", self._group, subscription.topic, error)
                return error
        return refusal


def is_sql(subscription: Subscription) -> bool:
    """Return whether brokers have to evaluate a filter, which some cannot."""
    return subscription.expression_type == SQL92


async def check_filter(session: Session, group: str, subscription: Subscription) -> None:
    """Let a broker of the topic check a filter. Without a known broker, nothing is checked.

    Raises:
        BrokerRefusedError: the broker cannot evaluate the filter.
        RemotingError: the broker does not respond.
    """
    route = session.routes.cached(subscription.topic)
    address = session.routes.any_address(route.groups[0].name) if route is not None and route.groups else None
    if address is not None:
        await session.ask(address, encode_client_check(session.client_id, group, subscription, session.namespace))


async def find_refusal(session: Session, group: str, subscription: Subscription) -> SkyrouteError | None:
    """Return why a broker of the topic cannot evaluate a filter; None if it can, or if no broker can be reached."""
    with suppress(SkyrouteError):  # the rebalance logs it
        await session.routes.find(subscription.topic)
    try:
        await check_filter(session, group, subscription)
    except SkyrouteError as error:
        if isinstance(error, BrokerRefusedError) and not isinstance(error, NOT_NOW):
            log.warning("subscription refused group=%s topic=%s reason=%s", group, subscription.topic, error)
            return error
        log.info("subscription not checked group=%s topic=%s reason=%s", group, subscription.topic, error)
    return None
