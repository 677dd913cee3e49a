"""One consumer group with members in both languages on our brokers, and our brokers come and go."""

from tests.peers.client.test_groups import (
    test_java_and_python_members_share_queues_and_take_over_from_killed_members,
    test_nothing_acknowledged_is_lost_while_brokers_are_restarted,
)

__all__ = [
    "test_java_and_python_members_share_queues_and_take_over_from_killed_members",
    "test_nothing_acknowledged_is_lost_while_brokers_are_restarted",
]
