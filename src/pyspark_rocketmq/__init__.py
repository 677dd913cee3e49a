"""Lets Spark discover the format `rocketmq`: Spark imports every module whose name begins with `pyspark_`.

The import must not fail: Spark would then not start, even for programs that use no topic.
"""

import warnings

from skyroute.pipeline import register as register

__all__ = ["register"]

try:
    from skyroute.pipeline.data_source import RocketMQSource as DefaultSource
except ImportError as error:
    warnings.warn(
        f"the format rocketmq is not available: {error}; it needs PySpark 4 and pyarrow: pip install 'skyroute[spark]'",
        stacklevel=2,
    )
else:
    __all__ += ["DefaultSource"]
