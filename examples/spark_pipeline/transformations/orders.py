"""A topic as a streaming table, a view over it, and a copy of it in another topic.

Set NAMESRV_ADDR to the name servers of the cluster.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
NAME_SERVER = os.environ["NAMESRV_ADDR"]


@dp.table
def orders() -> DataFrame:
    """All messages of the topic Orders, since its first one."""
    reader = spark.readStream.format("rocketmq").option("nameServer", NAME_SERVER).option("topic", "Orders")
    return reader.option("startingOffsets", "earliest").load()


@dp.materialized_view
def orders_by_tag() -> DataFrame:
    """The number of messages of each tag."""
    return spark.read.table("orders").groupBy("tags").count()


dp.create_sink("order_copies", "rocketmq", {"nameServer": NAME_SERVER, "topic": "OrderCopies"})


@dp.append_flow(target="order_copies")
def copy_orders() -> DataFrame:
    """Every message again, in the topic OrderCopies."""
    return spark.readStream.table("orders").select("tags", "keys", "body")
