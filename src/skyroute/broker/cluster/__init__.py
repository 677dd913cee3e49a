"""The broker's part in a cluster: registration with name servers, topics on other brokers."""
