"""One Apache cluster, Java's clients and one Spark session: as for the client's tests, and for Spark's."""

from tests.peers.client.conftest import certificates, first_broker, guarded, java, name_server, place
from tests.spark.conftest import spark

__all__ = ["certificates", "first_broker", "guarded", "java", "name_server", "place", "spark"]
