"""Apache's Java producers send to our broker, and our consumers receive what they meant."""

from tests.peers.client.test_consuming import (
    test_a_pull_consumer_reads_seeks_and_commits,
    test_broadcasting_delivers_every_message_to_every_member,
    test_delayed_messages_arrive_when_they_should,
    test_failed_messages_are_retried_and_end_in_the_dead_letter_queue,
    test_large_and_compressed_bodies_arrive_whole,
    test_ordered_messages_come_in_order_though_some_fail_at_first,
    test_plain_messages_arrive_with_all_they_carry,
)

__all__ = [
    "test_a_pull_consumer_reads_seeks_and_commits",
    "test_broadcasting_delivers_every_message_to_every_member",
    "test_delayed_messages_arrive_when_they_should",
    "test_failed_messages_are_retried_and_end_in_the_dead_letter_queue",
    "test_large_and_compressed_bodies_arrive_whole",
    "test_ordered_messages_come_in_order_though_some_fail_at_first",
    "test_plain_messages_arrive_with_all_they_carry",
]
