"""POP requests: pop, acknowledge, change of the invisible time, notification, peek."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from skyroute.broker.config import BrokerConfig
from skyroute.broker.delivery.filters import TAG, Filter, subscription_filter
from skyroute.broker.handlers.access_checks import HideOthers, MakeRecheck, Recheck, SharedRetryTopics, kept_chars
from skyroute.broker.identity import Identity
from skyroute.broker.pop.acknowledging import Acknowledgements
from skyroute.broker.pop.long_polling import PopKey, PopLongPolling, SuspendedPop
from skyroute.broker.pop.pop_subscriptions import PopSubscriptions
from skyroute.broker.pop.popped_messages import Popped
from skyroute.broker.pop.popping import Popping
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.topics import Topics
from skyroute.clock import Clock
from skyroute.files.errors import StorageError
from skyroute.remoting.dispatch import Answer, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.remoting.stepwise import StepRunner, Steps
from skyroute.routing.topology import Permission
from skyroute.wire.calls.pop import (
    POP_COUNT_MAX,
    PopAnswer,
    PopQuestion,
    PopStatus,
    QueueQuestion,
    decode_notification,
    decode_peek,
    decode_polling_info,
    decode_pop,
    encode_notified,
    encode_polling_count,
    encode_pop_answer,
)
from skyroute.wire.calls.pop_acks import Ack, BatchAck, decode_ack, decode_batch_ack, decode_change, encode_changed
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

LATE_MS: Final = 500
"""A pop that arrives this long after the end of its long polling is not served."""

POLL_MS_MAX: Final = 60_000
"""Maximum time of long polling, for any requested time."""

SEARCH_S: Final = 0.005
"""Time limit of a search with a filter."""

STEP_COST: Final = 256
"""Acknowledged messages, and entries of a request, in one step."""

_READ: Final = int(Permission.READ)


class _WaitingPop(SuspendedPop):
    """A pop that waits. Each attempt checks it again: permissions and topics may have changed."""

    def __init__(
        self,
        peer: Peer,
        key: PopKey,
        deadline: float,
        attempt: Callable[[], Response | None],
        recheck: Recheck | None,
        chars: int,
    ) -> None:
        super().__init__(peer, key, deadline, chars)
        self._attempt = attempt
        self._recheck = recheck

    def retry(self) -> Response | None:
        if self._recheck is not None and (refusal := self._recheck()) is not None:
            return refusal
        return self._attempt()

    def time_out(self) -> Response:
        return (None if self.is_ending else self.retry()) or self.nothing()

    def nothing(self) -> Response:
        """Return the response without messages."""
        return encode_pop_answer(PopAnswer(PopStatus.NOT_FOUND))


class _WaitingNotification(_WaitingPop):
    """A notification request that waits."""

    def nothing(self) -> Response:
        return encode_notified(has_message=False)


@dataclass(frozen=True, slots=True)
class PopHandlers:
    """Handles POP requests."""

    popping: Popping
    acknowledgements: Acknowledgements
    long_polling: PopLongPolling
    subscriptions: PopSubscriptions
    store: MessageStore
    topics: Topics
    groups: Groups
    config: BrokerConfig
    identity: Identity
    clock: Clock
    step_runner: StepRunner
    make_recheck: MakeRecheck | None = None
    shared_retries: SharedRetryTopics | None = None

    # ------------------------------------------------------------------------------------------------------------- pop

    def pop(self, request: Request, peer: Peer) -> Answer:
        """Return messages, or wait until there are some."""
        question = decode_pop(request)
        left_ms = self._left_ms(question.born_at_ms, question.poll_ms)
        if left_ms < -LATE_MS:
            return encode_pop_answer(
                PopAnswer(PopStatus.NOT_FOUND), f"the broker[{self._ip}] pop message is timeout too much"
            )
        hide = self._hider(question.topic, peer)
        popped = self._pop(question, hide)
        self.subscriptions.note(question, self._now_ms())
        if popped.count or popped.is_cut or left_ms <= 0 or (popped.rest and not question.ordered):
            return self._respond(popped)

        def attempt() -> Response | None:
            found = self._pop(question, hide)
            return self._respond(found) if found.count or found.is_cut else None

        key = (question.topic, question.group, question.queue_id)
        recheck = self._recheck(request, peer)
        chars = len(question.expression or "") + len(question.attempt_id or "") + kept_chars(request, recheck)
        if not self.long_polling.has_room(key, peer.source, chars):
            return encode_pop_answer(PopAnswer(PopStatus.POLLING_FULL, rest_count=popped.rest))
        return self.long_polling.suspend(_WaitingPop(peer, key, self._deadline(left_ms), attempt, recheck, chars))

    def _left_ms(self, born_at_ms: int, poll_ms: int) -> int:
        """Return the time of long polling that is left; negative if the request is late."""
        now_ms = self._now_ms()
        return min((born_at_ms if born_at_ms > 0 else now_ms) + poll_ms - now_ms, POLL_MS_MAX)

    def _deadline(self, left_ms: int) -> float:
        return self.clock.monotonic() + left_ms / 1000

    def _now_ms(self) -> int:
        return int(self.clock.wall() * 1000)

    def _recheck(self, request: Request, peer: Peer) -> Recheck | None:
        return None if self.make_recheck is None else self.make_recheck(request, peer)

    @property
    def _ip(self) -> str:
        return self.identity.address.rpartition(":")[0]

    def _hider(self, topic: str, peer: Peer) -> HideOthers | None:
        return None if self.shared_retries is None else self.shared_retries.hider(topic, peer)

    def _pop(self, question: PopQuestion, hide: HideOthers | None) -> Popped:
        topic, accepted = self._admit(question)
        if hide is not None:
            accepted = hide(accepted)
        deadline = self.clock.monotonic() + SEARCH_S
        try:
            return self.popping.pop(question, topic, accepted, lambda: self.clock.monotonic() < deadline)
        except StorageError as error:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"messages cannot be popped: {error}") from error

    def _admit(self, question: PopQuestion) -> tuple[TopicConfig, Filter]:
        """Return the topic and the filter of a pop.

        Raises:
            RefusedError: it is refused.
        """
        self._check_master()
        if not self.config.broker_permission & _READ:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"the broker[{self._ip}] pop message is forbidden")
        if not 0 < question.count_max <= POP_COUNT_MAX:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER,
                f"maxMsgNums is {question.count_max} (expected 1 to {POP_COUNT_MAX})",
            )
        if not self.config.timers_enabled:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"the broker[{self._ip}] pop message is forbidden because timerWheelEnable is false",
            )
        self._check_invisible(question.invisible_ms)
        topic = self._topic(question.topic, question.queue_id)
        if self.topics.is_batch_topic(topic.name):
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER,
                f"topic[{topic.name}] keeps batches as one record (queue.type=BatchCQ): pull it, it cannot be popped",
            )
        self._check_group(question.group)
        kind, expression = question.expression_type or TAG, question.expression or "*"
        return topic, subscription_filter(
            topic.name, kind, expression, by_properties=self.config.property_filter_enabled
        )

    def _check_master(self) -> None:
        if self.config.is_slave:
            raise RefusedError(
                ResponseCode.NO_PERMISSION,
                f"{self.identity.name} id={self.identity.broker_id} is a slave: pop at its master",
            )

    def _check_invisible(self, invisible_ms: int) -> None:
        longest_ms = self.config.timer_delay_max_s * 1000
        if not 0 <= invisible_ms <= longest_ms:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime is {invisible_ms} ms (expected 0 to {longest_ms}, timerMaxDelaySec)",
            )

    def _topic(self, name: str, queue_id: int, illegal: int = ResponseCode.INVALID_PARAMETER) -> TopicConfig:
        topic = self.topics.get(name)
        if topic is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        if not topic.permission & _READ:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden")
        if queue_id >= topic.read_queues or queue_id < -1:
            raise RefusedError(
                illegal,
                f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{topic.read_queues}]",
            )
        return topic

    def _check_group(self, name: str) -> None:
        group = self.groups.find(name)
        if group is None:
            raise RefusedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist, create it with `skyroute admin updateSubGroup`",
            )
        if not group.enabled:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")

    @staticmethod
    def _respond(popped: Popped) -> Response:
        return encode_pop_answer(popped.answer(), "FOUND" if popped.count else None, popped.records)

    # ------------------------------------------------------------------------------------------------------------ acks

    def ack(self, request: Request, _peer: Peer) -> Response:
        """Acknowledge a message."""
        ack = decode_ack(request)
        self._check_receipt(ack)
        try:
            self.acknowledgements.ack(ack)
        except StorageError as error:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"the acknowledgement cannot be stored: {error}") from error
        return Response()

    def _check_receipt(self, ack: Ack) -> None:
        self._check_master()
        self._topic(ack.topic, ack.queue_id, ResponseCode.MESSAGE_ILLEGAL)
        if ack.receipt.broker_name != self.identity.name:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER,
                f"the receipt is of broker {ack.receipt.broker_name[:80]}, and this is {self.identity.name}",
            )
        self._check_offset(ack.topic, ack.queue_id, ack.offset)

    def _check_offset(self, topic: str, queue_id: int, offset: int) -> None:
        low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        if not low <= offset < high:
            raise RefusedError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}",
            )

    def batch_ack(self, request: Request, _peer: Peer) -> Answer:
        """Acknowledge many messages: very many in several steps."""
        self._check_master()
        return self.step_runner.answer(self._acknowledge(request))

    def _acknowledge(self, request: Request) -> Steps:
        """Acknowledge messages, in steps of about `STEP_COST` messages and entries."""
        acks, count, cost = [], 0, 0
        for ack in decode_batch_ack(request):
            acks.append(ack)
            count += len(ack.offsets)
            cost += 1 + len(ack.offsets)
            if cost >= STEP_COST:
                cost = 0
                yield
        if not count:
            raise RefusedError(ResponseCode.NO_MESSAGE, "the request acknowledges no message")
        for ack in acks:
            for at in range(0, len(ack.offsets), STEP_COST):
                offsets = ack.offsets[at : at + STEP_COST]
                self._acknowledge_offsets(ack, offsets)
                cost += 1 + len(offsets)
                if cost >= STEP_COST:
                    cost = 0
                    yield
        return Response()

    def _acknowledge_offsets(self, ack: BatchAck, offsets: tuple[int, ...]) -> None:
        topic, queue_id = ack.stored_topic, ack.queue_id
        if self.topics.get(topic) is None or queue_id >= self._topic(topic, -1).read_queues:
            return
        low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        if offsets[0] < low or offsets[-1] >= high:  # ascending
            offsets = tuple(offset for offset in offsets if low <= offset < high)
        if not offsets:
            return
        try:
            self.acknowledgements.ack_many(
                *(ack.group, topic, queue_id, ack.start_offset, ack.popped_at_ms),
                *(ack.invisible_ms, ack.revive_queue_id, offsets),
            )
        except StorageError as error:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"an acknowledgement cannot be stored: {error}") from error

    def change(self, request: Request, _peer: Peer) -> Response:
        """Change the time at which a message is visible again."""
        change = decode_change(request)
        self._check_receipt(change.ack)
        self._check_invisible(change.invisible_ms)
        try:
            return encode_changed(*self.acknowledgements.change(change))
        except StorageError as error:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"the change cannot be stored: {error}") from error

    # ---------------------------------------------------------------------------------------------- notification, peek

    def notification(self, request: Request, peer: Peer) -> Answer:
        """Respond when a pop would find messages."""
        asked = decode_notification(request)
        question = PopQuestion(
            *(asked.group, asked.topic, 0, 1, asked.queue_id, asked.poll_ms, asked.born_at_ms),
            ordered=asked.ordered,
            attempt_id=asked.attempt_id,
        )

        def attempt() -> Response | None:
            topic = self._topic(question.topic, question.queue_id)
            self._check_group(question.group)
            return encode_notified(has_message=True) if self.popping.has_messages(question, topic) else None

        if (response := attempt()) is not None:
            return response
        left_ms = self._left_ms(asked.born_at_ms, asked.poll_ms)
        key = (asked.topic, asked.group, asked.queue_id)
        if left_ms <= 0:
            return encode_notified(has_message=False)
        recheck = self._recheck(request, peer)
        chars = len(asked.expression or "") + len(asked.attempt_id or "") + kept_chars(request, recheck)
        if not self.long_polling.has_room(key, peer.source, chars):
            return encode_notified(has_message=False, polling_full=True)
        return self.long_polling.suspend(
            _WaitingNotification(peer, key, self._deadline(left_ms), attempt, recheck, chars)
        )

    def polling_info(self, request: Request, _peer: Peer) -> Response:
        """Return the number of waiting pops."""
        question = decode_polling_info(request)
        self._checked(question)
        return encode_polling_count(self.long_polling.waiting((question.topic, question.group, question.queue_id)))

    def _checked(self, question: QueueQuestion) -> TopicConfig:
        topic = self._topic(question.topic, question.queue_id)
        self._check_group(question.group)
        return topic

    def peek(self, request: Request, peer: Peer) -> Response:
        """Return the next messages of a group without popping them."""
        question = decode_peek(request)
        topic = self._checked(question)
        count_max = min(max(1, question.count_max), POP_COUNT_MAX)
        hide = self._hider(question.topic, peer)
        accepted = Filter() if hide is None else hide(Filter())
        popped = self.popping.peek(question.group, topic, question.queue_id, count_max, accepted)
        return self._respond(popped)
