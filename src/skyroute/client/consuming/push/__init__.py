"""The parts of `client.consumer`: what is wanted, which queues are ours, fetching, handling, and what brokers ask."""
