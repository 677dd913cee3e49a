"""Requests and their replies through our broker, with either language in either role."""

from tests.peers.client.test_request_reply import (
    test_a_request_without_a_reply_times_out,
    test_java_replies_to_our_requests,
    test_we_reply_to_java_s_requests,
)

__all__ = [
    "test_a_request_without_a_reply_times_out",
    "test_java_replies_to_our_requests",
    "test_we_reply_to_java_s_requests",
]
