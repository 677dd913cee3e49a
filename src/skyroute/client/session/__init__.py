"""What producers and consumers share: connections, routes, heartbeats."""
