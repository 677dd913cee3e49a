"""Topics as tables of Spark's catalog.

Spark keeps no options of a Python source's table, but the metadata of its columns: the first column has the options.
"""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql.types import StructField, StructType

from skyroute.message.reserved_topics import DLQ_PREFIX, REPLY_SUFFIX, RETRY_PREFIX, is_system_topic
from skyroute.pipeline.options import OptionsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEY: Final = "rocketmq.options"
_TOPIC_KEY: Final = "rocketmq.topic"
"""Marks the column `topic` of a table: it has the topic that rows were read from."""
_ATTACHED: Final = "rocketmq.attached"
"""Marks a table that `attach` created: the name server, and the table's own name, which a copy of the table has not."""
_TABLE_PREFIX: Final = "option."
"""With CREATE TABLE, Spark passes each option twice, once with this prefix, among properties of the table."""
_SECRETS: Final = ("accesskey", "secretkey", "securitytoken", "tls.client.keypassword")


def declared_options(given: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """Return the options of a read, and whether a table is being created with them."""
    if "provider" not in given:
        return dict(given), False
    return {
        name.removeprefix(_TABLE_PREFIX): text for name, text in given.items() if name.startswith(_TABLE_PREFIX)
    }, True


def with_options(schema: StructType, options: Mapping[str, str], given: Mapping[str, str] | None = None) -> StructType:
    """Return the schema of a table, with its options in the metadata of the first column.

    `given` are all properties of the table that is being created.

    Raises:
        OptionsError: an option is a secret, which a catalog would show to every user.
    """
    _check_secrets(options)
    attached = (given or {}).get(_ATTACHED)
    of_table = {_KEY: json.dumps(dict(sorted(options.items())))}
    if attached:
        of_table[_ATTACHED] = attached
    fields: list[StructField] = []
    for field in schema.fields:
        of_topic = {_TOPIC_KEY: "true"} if field.name == "topic" else {}
        metadata = {**field.metadata, **of_topic, **({} if fields else of_table)}
        fields.append(StructField(field.name, field.dataType, field.nullable, metadata))
    return StructType(fields)


def _check_secrets(options: Mapping[str, str]) -> None:
    if secrets := [name for name in options if name.lower() in _SECRETS]:
        raise OptionsError(
            f"a table cannot store {', '.join(secrets)}: everyone could read it in the catalog. Use credentialsFile, or"
            " give it with each query: SELECT ... FROM table WITH (secretKey = '...')"
        )


def options_of(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a read: those stored in the table, overridden by those of the query.

    Raises:
        OptionsError: there are none.
    """
    stored: dict[str, Any] = json.loads(schema.fields[0].metadata.get(_KEY, "{}")) if schema.fields else {}
    if not stored and not given:
        raise OptionsError(
            "this table has no options: Spark drops those of CREATE TABLE if the statement lists columns. Create it as"
            " CREATE TABLE name USING rocketmq OPTIONS (nameServer '...', topic '...', columns 'tags,body')"
        )
    return {**stored, **given}


def check_write(given: Mapping[str, str], schema: StructType) -> None:
    """Check that a write names its target.

    Raises:
        OptionsError: it has neither a topic nor a name server, as INSERT INTO a table: Spark does not say which table.
            Or it would send the rows of a table back to the topic that they were read from.
    """
    names = {name.lower() for name in given}
    if not names & (_TOPICS | _NAME_SERVERS):
        raise OptionsError(
            "this write has no option that names its target, and Spark passes no options of a table: add them as"
            " INSERT INTO table WITH (nameServer = '...', topic = '...') SELECT ..., insert into a temporary view,"
            " or set the option nameServer or topic"
        )
    if not names & _TOPICS and any(_TOPIC_KEY in field.metadata for field in schema.fields):
        raise OptionsError(
            "the column topic has the topic that these rows were read from, so they would be sent back to it: name the"
            " target with the option topic, as INSERT INTO table WITH (nameServer = '...', topic = '...') SELECT ..."
        )


_TOPICS: Final = {"topic", "path"}
_NAME_SERVERS: Final = {"nameserver", "nameservers", "namesrvaddr"}


def attach(spark: "SparkSession", database: str, name_server: str, **options: str) -> dict[str, str]:
    """Make every topic of a cluster a table of a database, and return the tables with their topics.

    A table has the name of its topic; characters that Spark does not allow become `_`. Call it again to add new topics.
    It then drops its own tables of topics that were deleted. It never changes tables that it did not create.

    Args:
        spark: the session; its catalog keeps the database.
        database: created if it does not exist.
        name_server: `host:port;host:port`.
        options: options of all tables, such as `columns="tags,body"`.

    Raises:
        OptionsError: two topics have the same table name, a table of this name exists already, or an option is a
            secret. Nothing was changed.
        AnalysisException: an option is wrong. Nothing was changed.
        NoNameServerError: no name server responds.

    Examples:
        >>> attach(spark, "rmq", "127.0.0.1:9876")
        >>> spark.sql("USE rmq")
        >>> spark.sql("SELECT tags, count(*) FROM Orders GROUP BY tags").show()
    """
    from skyroute.blocking import Admin  # noqa: PLC0415 - slow; Spark's processes need no Admin
    from skyroute.client.session.signing import Credentials  # noqa: PLC0415 - as above

    with Admin(name_server, credentials=Credentials.from_environment()) as admin:
        view = admin.cluster()
        own_topics = {name for cluster in view.clusters for name in (cluster, f"{cluster}{REPLY_SUFFIX}")}
        own_topics.update(group.name for group in view.groups)
        topics = sorted(topic for topic in admin.topics() if _is_table(topic) and topic not in own_topics)
    tables: dict[str, str] = {}
    for topic in topics:
        table = re.sub(r"\W", "_", topic)
        other = next((known for name, known in tables.items() if name.lower() == table.lower()), None)
        if other is not None:
            raise OptionsError(f"the topics {other} and {topic} would both be the table {table}: create one as a view")
        tables[table] = topic
    every = {"nameServer": name_server, **options}
    _check_secrets(every)
    spark.read.format("rocketmq").options(**{**every, "topic": "any"}).load()  # checks the options
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(database)}")
    listed = spark.catalog.listTables(database)
    known = {each.name.lower() for each in listed if not each.isTemporary}  # temporary views are listed everywhere
    views = {each.name.lower() for each in listed if each.tableType == "VIEW"}
    own = {name for name in known - views if _is_attached(spark, name_server, database, name)}
    if foreign := [name for name in tables if name.lower() in known - own]:
        raise OptionsError(
            f"the database {database} has tables named as topics, which attach did not create: {', '.join(foreign)}."
            " Use another database, or drop them"
        )
    for name in own:
        spark.sql(f"DROP TABLE {_quoted(database)}.{_quoted(name)}")
    for table, topic in tables.items():
        given = ", ".join(f"{_quoted(name)} {_text(value)}" for name, value in {**every, "topic": topic}.items())
        spark.sql(
            f"CREATE TABLE {_quoted(database)}.{_quoted(table)} USING rocketmq OPTIONS ({given})"
            f" TBLPROPERTIES ('{_ATTACHED}' = {_text(_mark(name_server, database, table))})"
        )
    return tables


def _mark(name_server: str, database: str, table: str) -> str:
    return f"{name_server} {database.lower()}.{table.lower()}"


def _is_attached(spark: "SparkSession", name_server: str, database: str, table: str) -> bool:
    try:
        fields = spark.table(f"{_quoted(database)}.{_quoted(table)}").schema.fields
    except PySparkException:  # such as a table of a format that is not installed
        return False
    return bool(fields) and fields[0].metadata.get(_ATTACHED) == _mark(name_server, database, table)


def _is_table(topic: str) -> bool:
    return not is_system_topic(topic) and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
