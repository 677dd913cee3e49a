"""Registration with name servers, and topics on the other brokers of the cluster."""
