"""Our consumer of POP on our broker: what is true on Apache's is true here."""

from tests.peers.client.test_simple_consumer import (
    test_a_message_that_was_not_received_cannot_be_acknowledged,
    test_a_message_without_acknowledgement_comes_again,
    test_an_ordered_queue_is_blocked_until_its_messages_are_acknowledged,
    test_assigned_queues_are_received_and_failures_become_dead_letters,
    test_handlers_acknowledge_delay_and_keep_messages,
    test_messages_of_all_brokers_are_received_once_and_acknowledged,
    test_only_wanted_tags_are_received,
    test_the_blocking_consumer_receives_and_acknowledges,
    test_the_invisible_time_of_a_message_can_be_changed,
)

__all__ = [
    "test_a_message_that_was_not_received_cannot_be_acknowledged",
    "test_a_message_without_acknowledgement_comes_again",
    "test_an_ordered_queue_is_blocked_until_its_messages_are_acknowledged",
    "test_assigned_queues_are_received_and_failures_become_dead_letters",
    "test_handlers_acknowledge_delay_and_keep_messages",
    "test_messages_of_all_brokers_are_received_once_and_acknowledged",
    "test_only_wanted_tags_are_received",
    "test_the_blocking_consumer_receives_and_acknowledges",
    "test_the_invisible_time_of_a_message_can_be_changed",
]
