"""The admin commands by name. Each is imported when it is called."""

import click

from skyroute.cli.lazy_group import LazyCommand, LazyGroup
from skyroute.cli.options import examples

_CLUSTER = "skyroute.cli.admin.cluster_commands"
_CONTROLLER = "skyroute.cli.admin.controller_commands"
_TOPIC = "skyroute.cli.admin.topic_commands"
_GROUP = "skyroute.cli.admin.group_commands"
_MESSAGE = "skyroute.cli.admin.message_commands"
_ACCESS = "skyroute.cli.admin.access_commands"

_COMMANDS = {
    "clusterList": LazyCommand(_CLUSTER, "cluster_list", "List all brokers with address, version and load."),
    "clusterRT": LazyCommand(_CLUSTER, "cluster_rt", "Measure the send latency of every broker."),
    "topicList": LazyCommand(_TOPIC, "topic_list", "List all topics."),
    "topicRoute": LazyCommand(_TOPIC, "topic_route", "Print the brokers and queues of a topic."),
    "topicStatus": LazyCommand(_TOPIC, "topic_status", "Print the minimum and maximum offsets of a topic's queues."),
    "topicClusterList": LazyCommand(_TOPIC, "topic_cluster_list", "List the clusters that have a topic."),
    "updateTopic": LazyCommand(_TOPIC, "update_topic", "Create or change a topic."),
    "updateTopicPerm": LazyCommand(_TOPIC, "update_topic_perm", "Change the permission of a topic."),
    "deleteTopic": LazyCommand(_TOPIC, "delete_topic", "Delete a topic and its messages."),
    "updateOrderConf": LazyCommand(_TOPIC, "update_order_conf", "Set, print or delete the order config of a topic."),
    "allocateMQ": LazyCommand(_TOPIC, "allocate_mq", "Show how consumers would share the queues of a topic."),
    "statsAll": LazyCommand(_TOPIC, "stats_all", "Print the rates of each topic and the lag of each group."),
    "brokerStatus": LazyCommand(_CLUSTER, "broker_status", "Print the state of brokers."),
    "haStatus": LazyCommand(_CLUSTER, "ha_status", "Print the replication of brokers."),
    "getBrokerConfig": LazyCommand(_CLUSTER, "get_broker_config", "Print the settings of brokers."),
    "updateBrokerConfig": LazyCommand(_CLUSTER, "update_broker_config", "Change a broker setting at run time."),
    "cleanExpiredCQ": LazyCommand(_CLUSTER, "clean_expired_cq", "Delete consume queue files whose messages are gone."),
    "cleanUnusedTopic": LazyCommand(
        _CLUSTER,
        "clean_unused_topic",
        "Delete the queues of topics that no longer exist.",
    ),
    "getNamesrvConfig": LazyCommand(_CLUSTER, "get_namesrv_config", "Print the settings of all name servers."),
    "updateNamesrvConfig": LazyCommand(
        _CLUSTER, "update_namesrv_config", "Change a setting of all name servers at run time."
    ),
    "wipeWritePerm": LazyCommand(_CLUSTER, "wipe_write_perm", "Make a broker's topics read-only in all routes."),
    "addWritePerm": LazyCommand(_CLUSTER, "add_write_perm", "Make a broker's topics writable again."),
    "diffRoutes": LazyCommand(
        "skyroute.cli.admin.diff_command", "diff_routes", "Compare the routes of all name servers."
    ),
    "updateKvConfig": LazyCommand(_CLUSTER, "update_kv_config", "Set a value in the name servers' key-value config."),
    "deleteKvConfig": LazyCommand(
        _CLUSTER, "delete_kv_config", "Delete a key from the name servers' key-value config."
    ),
    "getControllerMetaData": LazyCommand(_CONTROLLER, "get_controller_meta_data", "Print which controller leads."),
    "getSyncStateSet": LazyCommand(
        _CONTROLLER, "get_sync_state_set", "Print the master and the sync state set of broker groups."
    ),
    "electMaster": LazyCommand(_CONTROLLER, "elect_master", "Make a replica the master of its broker group."),
    "cleanBrokerMetadata": LazyCommand(
        _CONTROLLER, "clean_broker_metadata", "Remove dead replicas of a broker group from the controller."
    ),
    "getBrokerEpoch": LazyCommand(_CONTROLLER, "get_broker_epoch", "Print the epochs of brokers' logs."),
    "getControllerConfig": LazyCommand(_CONTROLLER, "get_controller_config", "Print the settings of controllers."),
    "updateControllerConfig": LazyCommand(
        _CONTROLLER, "update_controller_config", "Change a setting of controllers at run time."
    ),
    "updateSubGroup": LazyCommand(_GROUP, "update_sub_group", "Create a consumer group or replace its settings."),
    "deleteSubGroup": LazyCommand(_GROUP, "delete_sub_group", "Delete a consumer group."),
    "consumerProgress": LazyCommand(_GROUP, "consumer_progress", "Print the offsets and lag of a consumer group."),
    "consumerConnection": LazyCommand(_GROUP, "consumer_connection", "List the members of a consumer group."),
    "producerConnection": LazyCommand(_GROUP, "producer_connection", "List the members of a producer group."),
    "consumerStatus": LazyCommand(_GROUP, "consumer_status", "Print the state of a consumer group's members."),
    "resetOffsetByTime": LazyCommand(
        _GROUP, "reset_offset_by_time", "Reset the offsets of a consumer group to a time."
    ),
    "cloneGroupOffset": LazyCommand(_GROUP, "clone_group_offset", "Copy the offsets of one group to another."),
    "queryMsgById": LazyCommand(_MESSAGE, "query_msg_by_id", "Print messages by id."),
    "queryMsgByKey": LazyCommand(_MESSAGE, "query_msg_by_key", "List messages with a key."),
    "queryMsgByUniqueKey": LazyCommand(_MESSAGE, "query_msg_by_unique_key", "Print a message by its unique id."),
    "queryMsgByOffset": LazyCommand(_MESSAGE, "query_msg_by_offset", "Print the message at an offset of a queue."),
    "printMsg": LazyCommand(_MESSAGE, "print_msg", "Print all messages of a topic."),
    "consumeMessage": LazyCommand(_MESSAGE, "consume_message", "Print a number of messages of a topic."),
    "sendMessage": LazyCommand(_MESSAGE, "send_message", "Send a message."),
    "checkMsgSendRT": LazyCommand(_MESSAGE, "check_msg_send_rt", "Measure the send latency of a topic."),
    "createUser": LazyCommand(_ACCESS, "create_user", "Create a user."),
    "updateUser": LazyCommand(_ACCESS, "update_user", "Change password, type or status of a user."),
    "deleteUser": LazyCommand(_ACCESS, "delete_user", "Delete a user and its policies."),
    "getUser": LazyCommand(_ACCESS, "get_user", "Print a user, without its password."),
    "listUser": LazyCommand(_ACCESS, "list_user", "List users, without their passwords."),
    "createAcl": LazyCommand(_ACCESS, "create_acl", "Add entries to the policies of a user."),
    "updateAcl": LazyCommand(_ACCESS, "update_acl", "Replace entries in the policies of a user."),
    "deleteAcl": LazyCommand(_ACCESS, "delete_acl", "Delete an entry of a user's policies, or all policies."),
    "getAcl": LazyCommand(_ACCESS, "get_acl", "Print the policies of a user."),
    "listAcl": LazyCommand(_ACCESS, "list_acl", "List policies."),
    "copyAcl": LazyCommand(_ACCESS, "copy_acl", "Copy policies from one server to another."),
}


@click.group(
    cls=LazyGroup,
    lazy_commands=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "export NAMESRV_ADDR=127.0.0.1:9876",
        "skyroute admin clusterList",
        "skyroute admin updateTopic -c DefaultCluster -t Orders",
        "skyroute admin consumerProgress -g billing --json",
    ),
)
def admin() -> None:
    """Inspect and change a cluster (mqadmin-compatible).

    Commands have the names and options of mqadmin. Each takes -n, or the variable NAMESRV_ADDR, and prints JSON with
    --json.
    """
