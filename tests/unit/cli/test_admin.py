"""Shared behaviour of all admin commands: lazy import, help, errors in one line, tables."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from skyroute.cli.admin.commands import admin
from skyroute.cli.admin.output import local_time, pairs, table
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.support.fake_broker import NAME_SERVER, Reply
from tests.unit.cli.admin_cluster import admin_cluster, invoke, run, run_json


def test_listing_commands_imports_no_client() -> None:
    show_help = "from skyroute.cli.main import main; main(['admin', '-h'], standalone_mode=False)"
    check = f"import sys; {show_help}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert "  topicList " in done.stdout
    modules = done.stdout.split("\n")[-2].split()
    assert not {"asyncio", "msgspec", "skyroute.client"} & set(modules)


def test_topic_commands_import_no_producer_or_consumer() -> None:
    check = "import sys, skyroute.cli.admin.topic_commands, skyroute.cli.admin.cluster_commands; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    heavy = {f"skyroute.client.{name}" for name in ("producing.producer", "consuming.consumer", "trace")}
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize("name", admin.list_commands(click.Context(admin)))
def test_each_listed_command_exists_and_has_help(name: str) -> None:
    context = click.Context(admin)
    command = admin.get_command(context, name)
    assert command is not None
    assert command.name == name
    assert command.help
    assert invoke([name, "-h"]).exit_code == 0


def test_an_unknown_command_is_a_usage_error() -> None:
    result = invoke(["topiclist"])
    assert result.exit_code == 2
    assert "No such command 'topiclist'" in result.stderr


def test_without_a_name_server_the_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    result = invoke(["topicList"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("skyroute admin topicList: no name server")
    assert result.stderr.count("\n") == 1


async def test_name_servers_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin_cluster() as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.address)
        result = await run(cluster, "topicList")
    assert result.stdout == "%RETRY%g\nOrders\n"


async def test_tenant_lists_the_topics_of_its_namespace() -> None:
    async with admin_cluster(topic="tenant%Orders") as cluster:
        result = await run(cluster, "topicList", "--tenant", "tenant")
    assert (result.exit_code, result.stdout) == (0, "Orders\n")


async def test_an_error_response_is_printed_in_one_line() -> None:
    async with admin_cluster() as cluster:
        cluster.refuse(
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            ResponseCode.SYSTEM_ERROR,
            "it\n\tat java.lang.Thread\n\tat other",
            broker=NAME_SERVER,
        )
        result = await run(cluster, "topicList", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert "refused with 1 (SYSTEM_ERROR): it at java.lang.Thread at other" in result.stderr


async def test_an_invalid_response_body_is_printed_in_one_line() -> None:
    async with admin_cluster() as cluster:
        cluster.on(
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, lambda _command, _peer: Reply(body=b"{"), broker=NAME_SERVER
        )
        result = await run(cluster, "topicList")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1


async def test_requests_are_signed_with_an_access_key() -> None:
    async with admin_cluster() as cluster:
        await run_json(cluster, "topicList", "--access-key", "me", "--secret-key", "secret")
        (request,) = cluster.seen(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert request.fields["AccessKey"] == "me"
    assert request.fields["Signature"]


def test_an_access_key_without_a_secret_key_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_SECRET_KEY", raising=False)
    result = invoke(["topicList", "-n", "127.0.0.1:1", "--access-key", "me"])
    assert result.exit_code == 2
    assert "--access-key needs --secret-key" in result.stderr


@pytest.mark.parametrize("targets", [[], ["-b", "h:1", "-c", "C"]])
@pytest.mark.parametrize(
    "command",
    [["updateTopic", "-t", "T"], ["brokerStatus"], ["getBrokerConfig"], ["updateTopicPerm", "-t", "T", "-p", "6"]],
)
def test_either_a_broker_or_a_cluster_must_be_given(command: list[str], targets: list[str]) -> None:
    result = invoke([*command, *targets])
    assert result.exit_code == 2
    assert "Give either -b (a broker's address) or -c (a cluster)." in result.stderr


# ------------------------------------------------------------------------------------------------------------- output


def test_a_table_is_aligned_and_numbers_are_right_aligned() -> None:
    text = table(("Name", "Size", "Done"), [["a", 5, True], ["bcdefgh", 12.345, None]])
    assert text.splitlines() == [
        "#Name    #Size  #Done",
        "a            5  true",
        "bcdefgh  12.35",
    ]


def test_a_table_without_rows_has_its_header() -> None:
    assert table(("Name", "Size"), []) == "#Name  #Size"


def test_pairs_are_aligned() -> None:
    assert pairs({"a": 1, "long": None}) == "a    = 1\nlong ="
    assert pairs({}) == ""


@pytest.mark.parametrize("missing", [None, 0, -1])
def test_a_missing_time_is_printed_as_empty_text(missing: int | None) -> None:
    assert local_time(missing) == ""


def test_a_time_has_milliseconds() -> None:
    assert local_time(1_758_275_140_005).endswith(":40.005")
