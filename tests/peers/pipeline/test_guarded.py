"""A broker that speaks TLS only, and to known users only, as Spark meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession

from tests.peers.client.conftest import OPERATOR, Certificates
from tests.peers.client.java_client import JavaClients, Place


def options(place: Place, certificates: Certificates, topic: str, secret: str = OPERATOR[1]) -> dict[str, str]:
    return {
        "nameServer": place.name_servers,
        "topic": topic,
        "accessKey": OPERATOR[0],
        "secretKey": secret,
        "tls.enable": "true",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(certificates.authority),
        "numRetries": "0",
    }


async def test_spark_and_java_exchange_messages_behind_acl_and_tls(
    spark: SparkSession, java: JavaClients, guarded: Place, certificates: Certificates
) -> None:
    topic = await java.create_topic(guarded, "SparkGuarded")
    given = options(guarded, certificates, topic)
    async with (
        java.producer(guarded, "spark-guarded") as producer,
        java.consumer(guarded, "spark-guarded-in", topic) as inbox,
    ):
        await producer.send(topic, b"from Java")
        rows = spark.range(0, 50, 1, 2).selectExpr("CONCAT('row ', id) AS body")
        rows.write.format("rocketmq").options(**given).mode("append").save()
        expected = {b"from Java", *(b"row %d" % number for number in range(50))}
        assert {each.body for each in await inbox.take_bodies(expected)} == expected
    found = spark.read.format("rocketmq").options(**given).load()
    assert {bytes(row.body) for row in found.collect()} == expected


async def test_a_wrong_secret_or_an_untrusted_certificate_is_an_error(
    spark: SparkSession, java: JavaClients, guarded: Place, certificates: Certificates, tmp_path: Path
) -> None:
    topic = await java.create_topic(guarded, "SparkGuardedFromStrangers")
    given = options(guarded, certificates, topic)
    with pytest.raises((AnalysisException, PythonException), match=r"(?i)signature|authenti|permission"):
        spark.read.format("rocketmq").options(**given | {"secretKey": "wrong"}).load().collect()
    strange = tmp_path / "strange.pem"
    trustme.CA().cert_pem.write_to_path(strange)
    with pytest.raises((AnalysisException, PythonException), match=r"(?i)certificate"):
        spark.read.format("rocketmq").options(**given | {"tls.client.trustCertPath": str(strange)}).load().collect()
