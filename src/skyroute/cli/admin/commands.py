"""The list of admin commands; each is imported when it is called."""

import click

from skyroute.cli.help import examples
from skyroute.cli.lazy import LazyCommand, LazyGroup

_CLUSTER = "skyroute.cli.admin.cluster_commands"
_TOPIC = "skyroute.cli.admin.topic_commands"
_GROUP = "skyroute.cli.admin.group_commands"
_MESSAGE = "skyroute.cli.admin.message_commands"

_COMMANDS = {
    "clusterList": LazyCommand(_CLUSTER, "cluster_list", "List every broker: where it is, its release, its load."),
    "clusterRT": LazyCommand(_CLUSTER, "cluster_rt", "Measure how long sends take, to every broker of every cluster."),
    "topicList": LazyCommand(_TOPIC, "topic_list", "List every topic."),
    "topicRoute": LazyCommand(_TOPIC, "topic_route", "Print where a topic is."),
    "topicStatus": LazyCommand(_TOPIC, "topic_status", "Print where the queues of a topic begin and end."),
    "topicClusterList": LazyCommand(_TOPIC, "topic_cluster_list", "List the clusters that have a topic."),
    "updateTopic": LazyCommand(_TOPIC, "update_topic", "Create a topic, or change it."),
    "updateTopicPerm": LazyCommand(_TOPIC, "update_topic_perm", "Change what clients may do with a topic."),
    "deleteTopic": LazyCommand(_TOPIC, "delete_topic", "Delete a topic with all its messages."),
    "updateOrderConf": LazyCommand(_TOPIC, "update_order_conf", "Say, ask or forget where an ordered topic lives."),
    "allocateMQ": LazyCommand(_TOPIC, "allocate_mq", "Show how consumers would share out the queues of a topic."),
    "statsAll": LazyCommand(_TOPIC, "stats_all", "Print messages in and out per topic, and the lag of each group."),
    "brokerStatus": LazyCommand(_CLUSTER, "broker_status", "Print what brokers say of their state."),
    "getBrokerConfig": LazyCommand(_CLUSTER, "get_broker_config", "Print the settings of brokers."),
    "updateBrokerConfig": LazyCommand(_CLUSTER, "update_broker_config", "Change a setting of brokers while they run."),
    "cleanExpiredCQ": LazyCommand(
        _CLUSTER, "clean_expired_cq", "Have brokers, by default all, drop the files of queues whose messages are gone."
    ),
    "cleanUnusedTopic": LazyCommand(
        _CLUSTER,
        "clean_unused_topic",
        "Have brokers, by default all, drop the queues of topics that they no longer have.",
    ),
    "getNamesrvConfig": LazyCommand(_CLUSTER, "get_namesrv_config", "Print the settings of all name servers."),
    "updateNamesrvConfig": LazyCommand(
        _CLUSTER, "update_namesrv_config", "Change a setting of all name servers while they run."
    ),
    "wipeWritePerm": LazyCommand(
        _CLUSTER, "wipe_write_perm", "Have all name servers show a broker's topics as not writable."
    ),
    "addWritePerm": LazyCommand(
        _CLUSTER, "add_write_perm", "Have all name servers show a broker's topics as writable again."
    ),
    "diffRoutes": LazyCommand(
        "skyroute.cli.admin.diff_command", "diff_routes", "Name all in which the name servers do not say the same."
    ),
    "updateKvConfig": LazyCommand(_CLUSTER, "update_kv_config", "Have all name servers keep a value under a key."),
    "deleteKvConfig": LazyCommand(_CLUSTER, "delete_kv_config", "Have all name servers forget a key."),
    "updateSubGroup": LazyCommand(_GROUP, "update_sub_group", "Create a consumer group, or replace its settings."),
    "deleteSubGroup": LazyCommand(_GROUP, "delete_sub_group", "Delete a consumer group."),
    "consumerProgress": LazyCommand(_GROUP, "consumer_progress", "Print how far a group has come, or all groups."),
    "consumerConnection": LazyCommand(_GROUP, "consumer_connection", "List who is connected for a consumer group."),
    "producerConnection": LazyCommand(_GROUP, "producer_connection", "List who is connected for a producer group."),
    "consumerStatus": LazyCommand(_GROUP, "consumer_status", "Print what the members of a group say of themselves."),
    "resetOffsetByTime": LazyCommand(_GROUP, "reset_offset_by_time", "Have a group go on at another time."),
    "cloneGroupOffset": LazyCommand(_GROUP, "clone_group_offset", "Have a group go on where another group is."),
    "queryMsgById": LazyCommand(_MESSAGE, "query_msg_by_id", "Print messages by their ids, and what became of them."),
    "queryMsgByKey": LazyCommand(_MESSAGE, "query_msg_by_key", "List the messages with a key."),
    "queryMsgByUniqueKey": LazyCommand(
        _MESSAGE, "query_msg_by_unique_key", "Print a message by its sender's id, and what became of it."
    ),
    "queryMsgByOffset": LazyCommand(_MESSAGE, "query_msg_by_offset", "Print the message at an offset of a queue."),
    "printMsg": LazyCommand(_MESSAGE, "print_msg", "Print the messages of a topic."),
    "consumeMessage": LazyCommand(_MESSAGE, "consume_message", "Print messages of a topic, up to a number."),
    "sendMessage": LazyCommand(_MESSAGE, "send_message", "Send a message."),
    "checkMsgSendRT": LazyCommand(_MESSAGE, "check_msg_send_rt", "Measure how long sends to a topic take."),
}


@click.group(
    cls=LazyGroup,
    later=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "export NAMESRV_ADDR=127.0.0.1:9876",
        "skyroute admin clusterList",
        "skyroute admin updateTopic -c DefaultCluster -t Orders",
        "skyroute admin consumerProgress -g billing --json",
    ),
)
def admin() -> None:
    """Look at a cluster and change it, as mqadmin does.

    Commands have mqadmin's names and flags. Each takes -n, or the environment's NAMESRV_ADDR, and prints JSON with
    --json.
    """
