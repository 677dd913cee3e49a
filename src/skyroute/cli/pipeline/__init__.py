"""`skyroute pipeline`: questions to the cluster's history and to topics, answered by Spark."""
