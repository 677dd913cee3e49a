"""One consumer group with members in both languages on our brokers, and our brokers come and go."""

from tests.peers.client.test_groups import (
    test_members_in_both_languages_share_evenly_and_take_over_from_the_dead,
    test_nothing_acknowledged_is_lost_while_brokers_are_restarted,
)

__all__ = [
    "test_members_in_both_languages_share_evenly_and_take_over_from_the_dead",
    "test_nothing_acknowledged_is_lost_while_brokers_are_restarted",
]
