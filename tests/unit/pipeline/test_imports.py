"""What the Python processes import that Spark starts for each query."""

import subprocess
import sys

PROGRAM = """
import sys
from pyspark.sql.types import BinaryType, StructField, StructType
from skyroute.pipeline.data_source import RocketMQSource

source = RocketMQSource({"nameServer": "127.0.0.1:9", "topic": "Orders"})
source.reader(source.schema())
source.streamReader(source.schema())
source.writer(StructType([StructField("body", BinaryType())]), overwrite=False)
print([name for name in ("pandas", "skyroute.blocking") if name in sys.modules])
"""


def test_planning_a_query_imports_no_pandas_and_no_whole_client() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
