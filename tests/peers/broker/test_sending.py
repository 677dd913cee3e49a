"""Our producer sends to our broker, and Apache's Java consumers receive what it meant."""

from tests.peers.client.test_sending import (
    test_a_batch_arrives_as_single_messages_and_a_long_one_is_cut,
    test_delayed_messages_arrive_when_they_should,
    test_large_and_compressed_bodies_arrive_whole,
    test_messages_with_one_sharding_key_keep_their_order_and_share_java_s_queue,
    test_plain_messages_arrive_with_all_they_carry,
    test_the_first_send_creates_a_topic,
    test_the_largest_body_that_does_not_shrink_arrives,
)

__all__ = [
    "test_a_batch_arrives_as_single_messages_and_a_long_one_is_cut",
    "test_delayed_messages_arrive_when_they_should",
    "test_large_and_compressed_bodies_arrive_whole",
    "test_messages_with_one_sharding_key_keep_their_order_and_share_java_s_queue",
    "test_plain_messages_arrive_with_all_they_carry",
    "test_the_first_send_creates_a_topic",
    "test_the_largest_body_that_does_not_shrink_arrives",
]
