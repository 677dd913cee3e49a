"""Starts a Spark session with the format `rocketmq`, local or on a cluster."""

import atexit
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

import skyroute
from skyroute.errors import SkyrouteError
from skyroute.pipeline import register
from skyroute.pipeline.jvm import provide_java

_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_JAVA: Final = {"spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile=file:{_LOGGING}"}
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}


class NoConnectError(SkyrouteError):
    """The packages of Spark Connect are not installed."""


def session(master: str | None = None, app_name: str = "skyroute", **conf: str) -> SparkSession:
    """Return the Spark session of this process with the format `rocketmq` registered.

    Starts a session if none is active. An active session keeps its master and settings; the arguments are ignored.
    Settings of `spark-submit` and `spark-defaults.conf` override the defaults set here.

    Args:
        master: such as `local[4]`, `spark://host:7077`, or `sc://host` for Spark Connect; None: the master of
            `spark-submit` or `spark-defaults.conf`, else local.
        app_name: the name in Spark's UI and logs.
        conf: Spark settings, such as `**{"spark.driver.memory": "4g"}`; they override all others.

    Raises:
        NoJavaError: no Java that Spark supports is found.
    """
    remote = master or os.environ.get("SPARK_REMOTE", "")
    if remote.startswith("sc://"):
        return _connect(remote, app_name, conf)
    if (running := SparkSession.getActiveSession()) is not None:
        register(running)
        return running
    provide_java()
    # By default, Spark starts the `python3` on each worker's PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    archive = None if (master or "local").startswith("local") else _pack_code()
    if archive is not None:
        # Spark plans streams in a separate local process, which gets no files added with `addPyFile`.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(archive), os.environ.get("PYTHONPATH"))))
    given = _start_java({} if master is None else {"spark.master": master}, conf)
    is_local = given.get("spark.master", "local").startswith("local")
    builder = SparkSession.builder.appName(app_name)
    for name, value in {**_QUIET, **(_LOCAL if is_local else {}), **given, **conf}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if not is_local:
        spark.sparkContext.addPyFile(str(archive or _pack_code()))
    register(spark)  # after addPyFile: Spark pickles the source and needs its code
    return spark


def _start_java(master: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    """Start Spark's JVM, unless `spark-submit` has, and return the settings that it was started with."""
    wanted = SparkConf(loadDefaults=False)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    wanted.setAll([*{**_JAVA, **({} if is_submitted else _QUIET), **master, **conf}.items()])
    # Only the JVM reads the settings of spark-submit and spark-defaults.conf.
    SparkContext._ensure_initialized(conf=wanted)  # noqa: SLF001 - a public call would create the context as well
    return {**dict(SparkConf().getAll()), **master}


def _connect(url: str, app_name: str, conf: Mapping[str, str]) -> SparkSession:
    """Return a session of a Spark Connect server, with our code sent to it."""
    try:
        builder = SparkSession.builder.remote(url).appName(app_name)
    except ImportError as error:
        raise NoConnectError(f"Spark Connect cannot be used: {error}; pip install 'pyspark[connect]'") from error
    spark = builder.getOrCreate()
    for name, value in {"spark.sql.session.timeZone": "UTC", **conf}.items():
        spark.conf.set(name, value)
    spark.addArtifacts(str(_pack_code()), pyfile=True)
    register(spark)
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
