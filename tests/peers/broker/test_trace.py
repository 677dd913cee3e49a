"""Traces that our broker keeps are read by either language."""

from tests.peers.client.test_trace import (
    test_java_reads_our_traces,
    test_we_read_java_s_traces,
)

__all__ = [
    "test_java_reads_our_traces",
    "test_we_read_java_s_traces",
]
