"""The pull consumer's parts: prefetching and the requests that brokers send."""
