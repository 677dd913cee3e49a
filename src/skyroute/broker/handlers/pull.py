"""Pull requests, with long polling."""

import os
from collections.abc import Callable
from typing import Final, NamedTuple

from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.config import BrokerConfig
from skyroute.broker.delivery.filters import Filter, make_filter, retry_filter, subscription_filter
from skyroute.broker.delivery.long_polling import LongPolling, SuspendedPull
from skyroute.broker.handlers.access_checks import HideOthers, MakeRecheck, Recheck, SharedRetryTopics, kept_chars
from skyroute.broker.identity import Identity
from skyroute.broker.stats import Stats
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.queues.queue_read import QueueRead, ReadStatus
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.broker.tables.topics import Topics
from skyroute.message.reserved_topics import retry_topic
from skyroute.remoting.dispatch import Answer, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.routing.topology import MASTER_ID, Permission
from skyroute.wire.calls.clients import MessageModel
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.calls.offsets import NO_MIN_OFFSET
from skyroute.wire.calls.pull import PullAnswer, PullQuestion, PullStatus, decode_pull, encode_pull_answer
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response

SUSPEND_MS_MAX: Final = 60_000
"""Maximum time a pull is suspended, for any requested time. Clients time out after 30 s."""

SEARCH_S: Final = 0.005
"""Time limit of a search with an SQL filter; the response then says where to continue."""

_READ: Final = int(Permission.READ)


class _Forbidden:
    """Values of the field `forbiddenType`: why reading is forbidden."""

    BROKER = 1
    GROUP = 2
    TOPIC = 3
    BROADCASTING = 4
    SUBSCRIPTION = 5


_OUTCOMES: Final = {
    ReadStatus.FOUND: (PullStatus.FOUND, "FOUND"),
    ReadStatus.NO_MATCH: (PullStatus.NO_MATCHED_MESSAGE, "NO_MATCHED_MESSAGE"),
    ReadStatus.REMOVED: (PullStatus.NO_MATCHED_MESSAGE, "MESSAGE_WAS_REMOVING"),
    ReadStatus.QUEUE_EMPTY: (PullStatus.NO_NEW_MESSAGE, "NO_MESSAGE_IN_QUEUE"),
    ReadStatus.TOO_SMALL: (PullStatus.OFFSET_ILLEGAL, "OFFSET_TOO_SMALL"),
    ReadStatus.AT_END: (PullStatus.NO_NEW_MESSAGE, "OFFSET_OVERFLOW_ONE"),
    ReadStatus.BEYOND_END: (PullStatus.OFFSET_ILLEGAL, "OFFSET_OVERFLOW_BADLY"),
    ReadStatus.SEGMENT_MISSING: (PullStatus.NO_NEW_MESSAGE, "OFFSET_FOUND_NULL"),
}


class _Read(NamedTuple):
    """The result of reading a queue, as a pull response reports it."""

    status: PullStatus
    remark: str
    found: QueueRead


class _WaitingPull(SuspendedPull):
    """A suspended pull. Each attempt checks it again: permissions and subscriptions may have changed."""

    def __init__(
        self,
        peer: Peer,
        question: PullQuestion,
        code: int,
        deadline: float,
        handlers: "PullHandlers",
        recheck: Recheck | None,
        hide: HideOthers | None,
        chars: int,
    ) -> None:
        super().__init__(peer, (question.topic, question.queue_id), deadline, chars)
        self._question = question
        self._code = code
        self._handlers = handlers
        self._offset = question.offset
        self._recheck = recheck
        self._hide = hide

    def _read(self) -> _Read | Response:
        if self._recheck is not None and (refusal := self._recheck()) is not None:
            return refusal
        accepted = self._handlers.admit(self._question, self._code, self.peer, self._hide)
        if isinstance(accepted, Response):
            return accepted
        return self._handlers.read(self._question, self._offset, accepted)

    def retry(self) -> Response | None:
        read = self._read()
        if isinstance(read, Response):
            return read
        if read.status is PullStatus.NO_NEW_MESSAGE:
            return None
        if read.status is PullStatus.NO_MATCHED_MESSAGE and read.found.next_offset >= read.found.max_offset:
            self._offset = read.found.next_offset  # the filter accepted none of them: wait for later ones
            return None
        return self._handlers.respond(self._question, read)

    def time_out(self) -> Response:
        read = self._read()
        return read if isinstance(read, Response) else self._handlers.respond(self._question, read)


class PullHandlers:
    """Handles pulls of push consumers and of lite pull consumers."""

    def __init__(
        self,
        store: MessageStore,
        *,
        long_polling: LongPolling,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        clients: ConnectedClients,
        stats: Stats,
        config: BrokerConfig,
        identity: Identity,
        monotonic: Callable[[], float],
        make_recheck: MakeRecheck | None = None,
        shared_retries: SharedRetryTopics | None = None,
        has_master: Callable[[], bool | None] | None = None,
    ) -> None:
        """`has_master` is given if this broker may be a slave: whether its master sends to it; None: it is master."""
        self._store = store
        self._long_polling = long_polling
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clients = clients
        self._stats = stats
        self._config = config
        self._identity = identity
        self._monotonic = monotonic
        self._make_recheck = make_recheck
        self._shared_retries = shared_retries
        self._has_master = has_master
        self._memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def pull(self, request: Request, peer: Peer) -> Answer:
        """Return messages of a queue, or suspend the pull until there are some."""
        question = decode_pull(request)
        hide = None if self._shared_retries is None else self._shared_retries.hider(question.topic, peer)
        accepted = self.admit(question, request.code, peer, hide)
        if isinstance(accepted, Response):
            return accepted
        has_master = None if self._has_master is None else self._has_master()
        if question.commit_offset is not None and has_master is None:
            self._offsets.commit(question.group, question.topic, question.queue_id, question.commit_offset)
        read = self.read(question, question.offset, accepted)
        if has_master and read.status is not PullStatus.FOUND:
            # The master may have more: the consumer asks it at once.
            return self.respond(question, read._replace(status=PullStatus.NO_MATCHED_MESSAGE))
        if read.status is PullStatus.NO_NEW_MESSAGE and question.suspend_ms > 0:
            recheck = None if self._make_recheck is None else self._make_recheck(request, peer)
            chars = len(question.expression or "") + kept_chars(request, recheck)
            if self._long_polling.has_room(peer.source, chars):
                config = self._config
                wait_ms = question.suspend_ms if config.long_polling_enabled else config.short_polling_ms
                deadline = self._monotonic() + min(wait_ms, SUSPEND_MS_MAX) / 1000
                return self._long_polling.suspend(
                    _WaitingPull(peer, question, request.code, deadline, self, recheck, hide, chars)
                )
        return self.respond(question, read)

    def admit(self, question: PullQuestion, code: int, peer: Peer, hide: HideOthers | None = None) -> Filter | Response:
        """Return the filter of a pull, or a response that says what is forbidden.

        Raises:
            RefusedError: the pull is refused for another reason.
        """
        config = self._config
        if not config.broker_permission & _READ:
            return _forbid(_Forbidden.BROKER, f"the broker[{self._ip}] pulling message is forbidden")
        if code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_enabled:
            return _forbid(_Forbidden.BROKER, f"the broker[{self._ip}] for lite pull consumer is forbidden")
        group = self._groups.find(question.group)
        if group is None:
            raise RefusedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{question.group}] does not exist, create it with `skyroute admin updateSubGroup`",
            )
        if not group.enabled:
            return _forbid(_Forbidden.GROUP, f"subscription group no permission, {question.group}")
        topic = self._topics.get(question.topic)
        if topic is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{question.topic}] not exist, apply first please!")
        if not topic.permission & _READ:
            return _forbid(_Forbidden.TOPIC, f"the topic[{question.topic}] pulling message is forbidden")
        if not 0 <= question.queue_id < topic.read_queues:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{question.queue_id}] is illegal, topic:[{question.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}] consumer:[{peer.address}]",
            )
        accepted = self._filter(question, group)
        if hide is not None and isinstance(accepted, Filter):
            accepted = hide(accepted)
        if config.filter_retry_topics and question.topic == retry_topic(group.name) and isinstance(accepted, Filter):
            consumers = self._clients.consumers(group.name)
            return accepted if consumers is None else retry_filter(accepted, consumers.subscriptions.values())
        return accepted

    @property
    def _ip(self) -> str:
        return self._identity.address.rpartition(":")[0]

    def _filter(self, question: PullQuestion, group: GroupConfig) -> Filter | Response:
        """Return the filter of the pull's own subscription or, if it has none, of its group's heartbeat."""
        by_properties = self._config.property_filter_enabled
        if question.expression is not None:
            kind, expression = question.expression_type, question.expression
            return subscription_filter(question.topic, kind, expression, by_properties=by_properties)
        consumers = self._clients.consumers(question.group)
        if consumers is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if consumers.model is MessageModel.BROADCASTING and not group.broadcast:
            text = f"the consumer group[{question.group}] can not consume by broadcast way"
            return _forbid(_Forbidden.BROADCASTING, text)
        if self._groups.is_forbidden(question.group, question.topic):
            text = f"the consumer group[{question.group}] is forbidden for topic[{question.topic}]"
            return _forbid(_Forbidden.SUBSCRIPTION, text)
        subscription = consumers.subscriptions.get(question.topic)
        if subscription is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
        if subscription.version < question.subscription_version:
            raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        try:
            return make_filter(subscription, by_properties=by_properties)
        except RefusedError as error:
            # Heartbeats are not checked for invalid expressions; Apache's broker then has no filter data.
            if error.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
                raise RefusedError(ResponseCode.FILTER_DATA_NOT_EXIST, str(error)) from None
            raise

    def read(self, question: PullQuestion, offset: int, accepted: Filter) -> _Read:
        """Read the messages that a filter accepts, from an offset on."""
        group, topic, queue_id = question.group, question.topic, question.queue_id
        reset = self._offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
            found = QueueRead(ReadStatus.TOO_SMALL, reset, low, high)
            return _Read(PullStatus.OFFSET_ILLEGAL, "OFFSET_RESET", found)
        config = self._config
        found = self._store.read_queue(
            topic,
            queue_id,
            offset,
            min(max(1, question.count_max), config.pull_messages_max),
            min(max(1, question.bytes_max), config.pull_bytes_max),
            accepted.accept_code,
            accepted.accept_record,
            None if accepted.accept_record is None else self._within_search_time(),
        )
        status, remark = _OUTCOMES[found.status]
        if found.status is ReadStatus.QUEUE_EMPTY:
            if offset != 0:
                status = PullStatus.OFFSET_ILLEGAL
            if self._topics.is_batch_topic(topic):
                found = found._replace(min_offset=NO_MIN_OFFSET)
        if status is PullStatus.OFFSET_ILLEGAL and self._has_master is not None and self._has_master() is not None:
            # Only the master knows which offsets are wrong: a slave may lag, and may have begun later.
            return _Read(PullStatus.NO_NEW_MESSAGE, remark, found._replace(next_offset=offset))
        return _Read(status, remark, found)

    def _within_search_time(self) -> Callable[[], bool]:
        """Return a function that returns True until `SEARCH_S` have passed."""
        deadline = self._monotonic() + SEARCH_S
        return lambda: self._monotonic() < deadline

    def respond(self, question: PullQuestion, read: _Read) -> Response:
        """Return the response for a read, and record it in offsets and statistics."""
        found = read.found
        group, topic = question.group, question.topic
        self._offsets.note_pull(group, topic, question.queue_id, found.next_offset)
        self._stats.fetched(group, topic, found.message_count, found.record_bytes)
        topic_config, group_config = self._topics.get(topic), self._groups.get(group)
        answer = PullAnswer(
            read.status,
            found.next_offset,
            found.min_offset,
            found.max_offset,
            self._suggested_broker(found, group_config) if self._config.slave_read_enabled else MASTER_ID,
            topic_sys_flag=None if topic_config is None else topic_config.sys_flag,
            group_sys_flag=None if group_config is None else group_config.sys_flag,
        )
        return encode_pull_answer(answer, read.remark, found.chunks)

    def _suggested_broker(self, found: QueueRead, group: GroupConfig | None) -> int:
        """Return the broker id to pull from next: a slave's for messages that are no longer in memory."""
        if group is None:
            return MASTER_ID
        memory_bytes = self._memory_bytes * self._config.memory_share
        if found.last_position >= 0 and self._store.max_position - found.last_position > memory_bytes:
            return group.broker_id_when_slow
        return group.broker_id


def _forbid(kind: int, reason: str) -> Response:
    return Response(ResponseCode.NO_PERMISSION, reason, {"forbiddenType": str(kind)})
