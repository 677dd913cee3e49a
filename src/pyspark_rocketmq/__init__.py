"""Lets Spark discover the format `rocketmq`: Spark imports every module whose name begins with `pyspark_`."""

from skyroute.pipeline import register as register
from skyroute.pipeline.data_source import RocketMQSource as DefaultSource

__all__ = ["DefaultSource", "register"]
