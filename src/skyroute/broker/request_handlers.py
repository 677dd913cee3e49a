"""The handler of each request code of a broker."""

from typing import Final

from skyroute.broker.components import Components
from skyroute.broker.handlers.assignment import AssignmentHandlers
from skyroute.broker.handlers.broker_admin import BrokerAdminHandlers
from skyroute.broker.handlers.clients import ClientHandlers
from skyroute.broker.handlers.consume_status import ConsumeStatusHandlers
from skyroute.broker.handlers.controller import ControllerHandlers
from skyroute.broker.handlers.forwarding import ForwardingHandlers
from skyroute.broker.handlers.groups import GroupHandlers
from skyroute.broker.handlers.logical_queues import LogicalQueues
from skyroute.broker.handlers.message_queries import MessageQueryHandlers
from skyroute.broker.handlers.offsets import OffsetHandlers, bytes_in_memory
from skyroute.broker.handlers.pop import PopHandlers
from skyroute.broker.handlers.pull import PullHandlers
from skyroute.broker.handlers.recall import RecallHandlers
from skyroute.broker.handlers.replication import ReplicationHandlers
from skyroute.broker.handlers.replies import ReplyHandlers
from skyroute.broker.handlers.send import SendHandlers
from skyroute.broker.handlers.send_back import SendBackHandlers
from skyroute.broker.handlers.topics import TopicHandlers
from skyroute.broker.handlers.transactions import TransactionHandlers
from skyroute.broker.roles import Roles
from skyroute.remoting.dispatch import Answer, Handler, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request

_NOT_ON_SLAVES: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.RECALL_MESSAGE,
    RequestCode.END_TRANSACTION,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
)
"""Requests that write messages."""
_CHANGES: Final = (
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
)
"""Requests that change tables; in controller mode, a slave's tables are the master's."""
_PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


def _refuse_on_slave(_request: Request, _peer: Peer) -> Answer:
    raise RefusedError(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST] this broker is a slave: ask its master")


def request_handlers(components: Components) -> dict[int, Handler]:
    """Return the handler of each request code. Other codes are not supported."""
    access = {} if components.enforcer is None else components.enforcer.handlers()
    logical = LogicalQueues(components.queue_mappings, components.peers, components.identity.name)
    handlers = logical.wrap(
        {**_for_producers(components), **_for_consumers(components), **_for_tools(components), **access}
    )
    handlers |= _for_brokers(components)
    if components.ha_slave is not None:
        handlers |= dict.fromkeys(_NOT_ON_SLAVES, _refuse_on_slave)
        for code in _PULLS:
            handlers[code] = _refuse_pulls(components, handlers[code])
    return (
        handlers
        if components.roles is None
        else {**handlers, **_for_controllers(components, components.roles, handlers)}
    )


def _for_controllers(components: Components, roles: Roles, handlers: dict[int, Handler]) -> dict[int, Handler]:
    controller = ControllerHandlers(roles, components.store, components.identity, components.config)
    return {
        **{code: controller.only_master(handlers[code]) for code in (*_NOT_ON_SLAVES, *_CHANGES)},
        **{code: controller.unless_slave(handlers[code]) for code in _PULLS},
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED: controller.role_changed,
        RequestCode.GET_BROKER_EPOCH_CACHE: controller.epochs,
        RequestCode.GET_BROKER_HA_STATUS: controller.status,
    }


def _refuse_pulls(components: Components, handler: Handler) -> Handler:
    def pull(request: Request, peer: Peer) -> Answer:
        acts = components.acting is not None and components.acting.is_acting
        return (
            handler(request, peer) if acts or components.config.slave_read_enabled else _refuse_on_slave(request, peer)
        )

    return pull


def _for_brokers(components: Components) -> dict[int, Handler]:
    replication = ReplicationHandlers(
        *(components.store, components.timers, components.identity, components.ha_master, components.ha_slave),
        ha_address=lambda: components.registrar.own.ha_address,
        log_end_at_start=components.log_end_at_start,
        acting=components.acting,
        sync=None if components.ha_slave is None else components.metadata_sync,
    )
    return {
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: replication.smallest_id_changed,
        RequestCode.GET_BROKER_HA_STATUS: replication.status,
        RequestCode.EXCHANGE_BROKER_HA_INFO: replication.exchange,
        RequestCode.RESET_MASTER_FLUSH_OFFSET: replication.reset_flush_offset,
        RequestCode.GET_TIMER_CHECK_POINT: replication.timer_check_point,
        RequestCode.GET_TIMER_METRICS: replication.timer_metrics,
    }


def _for_producers(components: Components) -> dict[int, Handler]:
    announce = components.registrar.announce
    send = SendHandlers(
        components.appender,
        topics=components.topics,
        groups=components.groups,
        locks=components.locks,
        announce=announce,
        propagation=components.topic_propagation,
        transactions=components.transactions,
        config=components.config,
        identity=components.identity,
        clock=components.clock,
        step_runner=components.prompt_runner,
    )
    replies = ReplyHandlers(
        *(components.clients, components.topics, send.send, components.identity, components.config, components.clock),
        require=components.require,
    )
    transactions = TransactionHandlers(
        components.transactions, components.appender, components.identity, components.require
    )
    recall = RecallHandlers(components.appender, components.topics, components.config, components.identity)
    return {
        RequestCode.SEND_MESSAGE: send.send,
        RequestCode.SEND_MESSAGE_V2: send.send,
        RequestCode.SEND_BATCH_MESSAGE: send.send,
        RequestCode.SEND_REPLY_MESSAGE: replies.reply,
        RequestCode.SEND_REPLY_MESSAGE_V2: replies.reply,
        RequestCode.RECALL_MESSAGE: recall.recall,
        RequestCode.END_TRANSACTION: transactions.end,
        RequestCode.RESUME_CHECK_HALF_MESSAGE: transactions.resume,
    }


def _for_consumers(components: Components) -> dict[int, Handler]:
    announce = components.registrar.announce
    pull = PullHandlers(
        components.store,
        long_polling=components.long_polling,
        topics=components.topics,
        groups=components.groups,
        offsets=components.offsets,
        clients=components.clients,
        stats=components.stats,
        config=components.config,
        identity=components.identity,
        monotonic=components.clock.monotonic,
        make_recheck=None if components.enforcer is None else components.enforcer.recheck,
        shared_retries=components.shared_retries,
        has_master=None if components.ha_slave is None and components.roles is None else components.has_master,
    )
    clients = ClientHandlers(
        *(
            components.clients,
            components.locks,
            components.topics,
            components.groups,
            components.notifications,
            announce,
            components.config,
            components.clock,
        ),
        step_runner=components.step_runner,
        prompt_runner=components.prompt_runner,
        on_leave=components.pop_polling.leave,
    )
    offsets = OffsetHandlers(
        *(components.offsets, components.topics, components.groups, components.clients, components.store),
        delay_offsets=components.delays.render,
        young_bytes=bytes_in_memory(),
        step_runner=components.step_runner,
    )
    send_back = SendBackHandlers(
        *(
            components.store,
            components.appender,
            components.topics,
            components.groups,
            components.stats,
            announce,
            components.config,
            components.identity,
        ),
        require=components.require,
    )
    pop = PopHandlers(
        *(components.popping, components.acknowledgements, components.pop_polling, components.pop_subscriptions),
        *(components.store, components.topics, components.groups),
        *(components.config, components.identity, components.clock),
        step_runner=components.prompt_runner,
        make_recheck=None if components.enforcer is None else components.enforcer.recheck,
        shared_retries=components.shared_retries,
    )
    assignment = AssignmentHandlers(
        components.topic_routes, components.clients, components.request_modes, components.step_runner
    )
    return {
        RequestCode.QUERY_ASSIGNMENT: assignment.query,
        RequestCode.POP_MESSAGE: pop.pop,
        RequestCode.ACK_MESSAGE: pop.ack,
        RequestCode.BATCH_ACK_MESSAGE: pop.batch_ack,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: pop.change,
        RequestCode.NOTIFICATION: pop.notification,
        RequestCode.POLLING_INFO: pop.polling_info,
        RequestCode.PEEK_MESSAGE: pop.peek,
        RequestCode.PULL_MESSAGE: pull.pull,
        RequestCode.LITE_PULL_MESSAGE: pull.pull,
        RequestCode.CONSUMER_SEND_MSG_BACK: send_back.send_back,
        RequestCode.HEART_BEAT: clients.heartbeat,
        RequestCode.UNREGISTER_CLIENT: clients.unregister,
        RequestCode.CHECK_CLIENT_CONFIG: clients.check_client,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.client_ids,
        RequestCode.LOCK_BATCH_MQ: clients.lock,
        RequestCode.UNLOCK_BATCH_MQ: clients.unlock,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: clients.consumer_connections,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: clients.producer_connections,
        RequestCode.GET_ALL_PRODUCER_INFO: clients.all_producers,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: clients.subscription,
        RequestCode.QUERY_CONSUMER_OFFSET: offsets.query,
        RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.offset_at_time,
        RequestCode.GET_MAX_OFFSET: offsets.max_offset,
        RequestCode.GET_MIN_OFFSET: offsets.min_offset,
        RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.earliest_time,
        RequestCode.QUERY_CORRECTION_OFFSET: offsets.corrections,
        RequestCode.CLONE_GROUP_OFFSET: offsets.clone,
        RequestCode.GET_ALL_CONSUMER_OFFSET: offsets.all,
        RequestCode.GET_ALL_DELAY_OFFSET: offsets.all_delays,
    }


def _for_tools(components: Components) -> dict[int, Handler]:
    announce = components.registrar.announce
    now_ms = components.now_ms
    topics = TopicHandlers(
        *(
            components.topics,
            components.offsets,
            components.clients,
            components.store,
            components.stats,
            components.config,
            announce,
            now_ms,
        ),
        step_runner=components.step_runner,
        mappings=components.queue_mappings,
        complete_pulls=components.long_polling.complete_queue,
    )
    groups = GroupHandlers(
        components.groups,
        components.topics,
        components.offsets,
        components.request_modes,
        components.stats,
        components.identity,
        components.step_runner,
    )
    status = ConsumeStatusHandlers(
        *(components.offsets, components.topics, components.groups, components.clients, components.store),
        *(components.stats, components.config, components.identity, now_ms, components.long_polling.wake_queue),
        step_runner=components.step_runner,
        mappings=components.queue_mappings,
        pop_progress=components.pop_progress,
    )
    queries = MessageQueryHandlers(
        components.store,
        components.topics,
        components.clients,
        components.pop_subscriptions,
        components.config,
        components.step_runner,
        components.clock.monotonic,
        components.require,
        components.shared_retries,
    )
    admin = BrokerAdminHandlers(components)
    forwarding = ForwardingHandlers(
        components.clients,
        components.store,
        components.topics,
        components.groups,
        components.identity,
        components.step_runner,
        components.require,
    )
    return {
        RequestCode.UPDATE_AND_CREATE_TOPIC: topics.update,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.update_many,
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: topics.update_static,
        RequestCode.GET_ALL_TOPIC_CONFIG: topics.all,
        RequestCode.GET_TOPIC_CONFIG: topics.get,
        RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete,
        RequestCode.GET_TOPIC_STATS_INFO: topics.status,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: topics.consuming_groups,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.system_topics,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: topics.clean_expired_queues,
        RequestCode.CLEAN_UNUSED_TOPIC: topics.clean_unused_topics,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.update,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.update_many,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.all,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.get,
        RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.delete,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: groups.set_read_permission,
        RequestCode.QUERY_TOPICS_BY_CONSUMER: groups.topics_of,
        RequestCode.SET_MESSAGE_REQUEST_MODE: groups.set_request_mode,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: groups.all_request_modes,
        RequestCode.GET_CONSUME_STATS: status.group_status,
        RequestCode.GET_BROKER_CONSUME_STATS: status.broker_status,
        RequestCode.QUERY_CONSUME_TIME_SPAN: status.time_spans,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: status.reset,
        RequestCode.QUERY_MESSAGE: queries.by_key,
        RequestCode.VIEW_MESSAGE_BY_ID: queries.at_position,
        RequestCode.QUERY_CONSUME_QUEUE: queries.queue_units,
        RequestCode.GET_BROKER_CONFIG: admin.settings,
        RequestCode.UPDATE_BROKER_CONFIG: admin.update_settings,
        RequestCode.GET_BROKER_RUNTIME_INFO: admin.runtime_info,
        RequestCode.VIEW_BROKER_STATS_DATA: admin.stats,
        RequestCode.DELETE_EXPIRED_COMMITLOG: admin.delete_expired,
        RequestCode.GET_CONSUMER_RUNNING_INFO: forwarding.running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: forwarding.consume_directly,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: forwarding.consumer_offsets,
    }
