"""Transactions on our broker, ended by the producer, or by its answer to the broker's question."""

from tests.peers.client.test_transactions import (
    test_a_java_producer_of_the_group_answers_for_ours_and_ours_for_java_s,
    test_the_transaction_example_prints_the_expected_output,
    test_transactions_are_committed_rolled_back_and_asked_about,
)

__all__ = [
    "test_a_java_producer_of_the_group_answers_for_ours_and_ours_for_java_s",
    "test_the_transaction_example_prints_the_expected_output",
    "test_transactions_are_committed_rolled_back_and_asked_about",
]
