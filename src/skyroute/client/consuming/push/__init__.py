"""The push consumer's parts: subscriptions, assignment, pull loops, dispatch to handlers, and retries."""
