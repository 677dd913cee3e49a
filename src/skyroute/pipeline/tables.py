"""Topics as tables of Spark's catalog.

Spark keeps no options of a Python source's table, but the metadata of its columns: the first column has the options.
"""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructField, StructType

from skyroute.blocking import Admin
from skyroute.client.session.signing import Credentials
from skyroute.message.reserved_topics import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from skyroute.pipeline.options import OptionsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEY: Final = "rocketmq.options"
_TABLE_PREFIX: Final = "option."
"""With CREATE TABLE, Spark passes each option twice, once with this prefix, among properties of the table."""
_SECRETS: Final = ("accesskey", "secretkey", "securitytoken", "tls.client.keypassword")


def declared_options(given: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """Return the options of a read, and whether a table is being created with them."""
    if "provider" not in given or not any(name.startswith(_TABLE_PREFIX) for name in given):
        return dict(given), False
    return {
        name.removeprefix(_TABLE_PREFIX): text for name, text in given.items() if name.startswith(_TABLE_PREFIX)
    }, True


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table, with its options in the metadata of the first column.

    Raises:
        OptionsError: an option is a secret, which a catalog would show to every user.
    """
    if secrets := [name for name in options if name.lower() in _SECRETS]:
        raise OptionsError(
            f"a table cannot store {', '.join(secrets)}: everyone could read it in the catalog. Use credentialsFile, or"
            " give it with each query: SELECT ... FROM table WITH (secretKey = '...')"
        )
    first, *others = schema.fields
    metadata = {**first.metadata, _KEY: json.dumps(dict(sorted(options.items())))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


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


def check_write(given: Mapping[str, str]) -> None:
    """Check that a write names its target.

    Raises:
        OptionsError: it has neither a topic nor a name server, as INSERT INTO a table: Spark does not say which table.
    """
    if not any(name.lower() in _TARGETS for name in given):
        raise OptionsError(
            "this write has no option that names its target, and Spark passes no options of a table: add them as"
            " INSERT INTO table WITH (nameServer = '...', topic = '...') SELECT ..., insert into a temporary view,"
            " or set the option nameServer or topic"
        )


_TARGETS: Final = ("nameserver", "nameservers", "namesrvaddr", "topic", "path")


def attach(spark: "SparkSession", database: str, name_server: str, **options: str) -> dict[str, str]:
    """Make every topic of a cluster a table of a database, and return the tables with their topics.

    A table has the name of its topic; characters that Spark does not allow become `_`. Call it again to add new topics.
    Tables of topics that were deleted are dropped.

    Args:
        spark: the session; its catalog keeps the database.
        database: created if it does not exist.
        name_server: `host:port;host:port`.
        options: options of all tables, such as `columns="tags,body"`.

    Raises:
        OptionsError: two topics have the same table name, or an option is wrong.
        NoNameServerError: no name server responds.

    Examples:
        >>> attach(spark, "rmq", "127.0.0.1:9876")
        >>> spark.sql("USE rmq")
        >>> spark.sql("SELECT tags, count(*) FROM Orders GROUP BY tags").show()
    """
    with Admin(name_server, credentials=Credentials.from_environment()) as admin:
        topics = sorted(filter(_is_table, admin.topics()))
    tables: dict[str, str] = {}
    for topic in topics:
        table = re.sub(r"\W", "_", topic)
        other = next((known for name, known in tables.items() if name.lower() == table.lower()), None)
        if other is not None:
            raise OptionsError(f"the topics {other} and {topic} would both be the table {table}: create one as a view")
        tables[table] = topic
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(database)}")
    for known in spark.catalog.listTables(database):
        if known.isTemporary:  # it is listed for every database
            continue
        fields = spark.table(f"{_quoted(database)}.{_quoted(known.name)}").schema.fields
        if fields and _KEY in fields[0].metadata:
            spark.sql(f"DROP TABLE {_quoted(database)}.{_quoted(known.name)}")
    for table, topic in tables.items():
        given = {"nameServer": name_server, "topic": topic, **options}
        listed = ", ".join(f"{_quoted(name)} {_text(value)}" for name, value in given.items())
        spark.sql(f"CREATE TABLE {_quoted(database)}.{_quoted(table)} USING rocketmq OPTIONS ({listed})")
    return tables


def _is_table(topic: str) -> bool:
    return not is_system_topic(topic) and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
