"""Starts a Spark session with the format `rocketmq`, local or on a cluster."""

import atexit
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import skyroute
from skyroute.pipeline import register
from skyroute.pipeline.jvm import provide_java

_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_QUIET: Final = {
    "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile=file:{_LOGGING}",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}


def session(master: str | None = None, app_name: str = "skyroute", **conf: str) -> SparkSession:
    """Return the Spark session of this process with the format `rocketmq` registered.

    Starts a session if none is active. An active session keeps its master and settings; the arguments are ignored.

    Args:
        master: such as `local[4]` or `spark://host:7077`; None: the master of `spark-submit`, else local.
        app_name: the name in Spark's UI and logs.
        conf: Spark settings, such as `**{"spark.driver.memory": "4g"}`; they override the defaults set here.

    Raises:
        NoJavaError: no Java that Spark supports is found.
    """
    if (running := SparkSession.getActiveSession()) is not None:
        register(running)
        return running
    provide_java()
    # By default, Spark starts the `python3` on each worker's PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    is_local = (master or "local").startswith("local")
    archive = None if is_local else _pack_code()
    if archive is not None:
        # Spark plans streams in a separate local process, which gets no files added with `addPyFile`.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(archive), os.environ.get("PYTHONPATH"))))
    for name, value in {**_QUIET, **(_LOCAL if is_local else {}), **conf}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if archive is not None:
        spark.sparkContext.addPyFile(str(archive))
    register(spark)  # after addPyFile: Spark pickles the source and needs its code
    return spark


def _pack_code() -> Path:
    """Return a zip of our packages for workers. Their Python then needs only pyspark, pyarrow and msgspec."""
    sources = Path(skyroute.__file__).parents[1]
    folder = Path(tempfile.mkdtemp(prefix="skyroute-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # workers download it when they need it
    archive = folder / f"skyroute-{skyroute.__version__}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in ("skyroute", "pyspark_rocketmq"):
            for path in sorted((sources / package).rglob("*.py")):
                packed.write(path, path.relative_to(sources))
    return archive
