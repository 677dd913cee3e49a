"""The Spark session that our commands use: on this machine, or on a cluster that is sent our code."""

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
    """Return the Spark session of this process, started if there is none, and able to read and write `rocketmq`.

    One that is there already stays as it is, whatever is asked for.

    Args:
        master: such as `local[4]` or `spark://host:7077`; None: what Spark was submitted with, else this machine.
        app_name: what people see in Spark's own lists.
        conf: Spark's settings, such as `**{"spark.driver.memory": "4g"}`; they win over ours.

    Raises:
        NoJavaError: there is no Java that Spark runs on.
    """
    if (running := SparkSession.getActiveSession()) is not None:
        register(running)
        return running
    provide_java()
    # Spark would start whatever `python3` is on the PATH of each worker.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    is_local = (master or "local").startswith("local")
    archive = None if is_local else _pack_code()
    if archive is not None:
        # What plans a stream runs on this machine, but is given none of the files that are sent to workers.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(archive), os.environ.get("PYTHONPATH"))))
    for name, value in {**_QUIET, **(_LOCAL if is_local else {}), **conf}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if archive is not None:
        spark.sparkContext.addPyFile(str(archive))
    register(spark)  # after the code was sent: nothing can be registered that workers do not have
    return spark


def _pack_code() -> Path:
    """Return an archive of our packages for workers, whose Python needs only pyspark, pyarrow and msgspec then."""
    sources = Path(skyroute.__file__).parents[1]
    folder = Path(tempfile.mkdtemp(prefix="skyroute-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # workers fetch it when they first need it
    archive = folder / f"skyroute-{skyroute.__version__}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in ("skyroute", "pyspark_rocketmq"):
            for path in sorted((sources / package).rglob("*.py")):
                packed.write(path, path.relative_to(sources))
    return archive
