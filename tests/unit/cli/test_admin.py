"""What all admin commands have in common."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from skyroute.cli.admin.commands import admin
from skyroute.cli.admin.output import local_time, pairs, table
from tests.support.fake_broker import NAME_SERVER, Reply
from tests.unit.cli.admin_cluster import admin_cluster, invoke, run, run_json


def test_the_list_of_commands_imports_none() -> None:
    show_help = "from skyroute.cli.main import main; main(['admin', '-h'], standalone_mode=False)"
    check = f"import sys; {show_help}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert "  topicList " in done.stdout
    modules = done.stdout.split("\n")[-2].split()
    assert not {"asyncio", "msgspec", "skyroute.client"} & set(modules)


def test_looking_at_topics_imports_no_producer_and_no_consumer() -> None:
    check = "import sys, skyroute.cli.admin.topic_commands, skyroute.cli.admin.cluster_commands; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    heavy = {f"skyroute.client.{name}" for name in ("producer", "consumer", "pull_consumer", "trace")}
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize("name", admin.list_commands(click.Context(admin)))
def test_each_command_of_the_list_is_there_and_has_help(name: str) -> None:
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


def test_without_a_name_server_the_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    result = invoke(["topicList"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("skyroute admin topicList: no name server is given")
    assert result.stderr.count("\n") == 1


async def test_the_environment_says_where_the_name_servers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin_cluster() as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.address)
        result = await run(cluster, "topicList")
    assert result.stdout == "%RETRY%g\nOrders\n"


async def test_a_tenant_sees_its_own_topics_by_its_own_names() -> None:
    async with admin_cluster(topic="tenant%Orders") as cluster:
        result = await run(cluster, "topicList", "--tenant", "tenant")
    assert (result.exit_code, result.stdout) == (0, "Orders\n")


async def test_a_refusal_is_one_line_whatever_the_server_remarks() -> None:
    async with admin_cluster() as cluster:
        cluster.refuse(206, 1, "it\n\tat java.lang.Thread\n\tat other", broker=NAME_SERVER)
        result = await run(cluster, "topicList", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert "refused with 1 (SYSTEM_ERROR): it at java.lang.Thread at other" in result.stderr


async def test_an_answer_that_makes_no_sense_is_one_line() -> None:
    async with admin_cluster() as cluster:
        cluster.on(206, lambda _command, _peer: Reply(body=b"{"), broker=NAME_SERVER)
        result = await run(cluster, "topicList")
    assert result.exit_code == 1
    assert "not a list of topics" in result.stderr


async def test_requests_are_signed_if_a_key_is_given() -> None:
    async with admin_cluster() as cluster:
        await run_json(cluster, "topicList", "--access-key", "me", "--secret-key", "secret")
        (request,) = cluster.seen(206)
    assert request.fields["AccessKey"] == "me"
    assert request.fields["Signature"]


@pytest.mark.parametrize("words", [[], ["-b", "h:1", "-c", "C"]])
@pytest.mark.parametrize(
    "command",
    [["updateTopic", "-t", "T"], ["brokerStatus"], ["getBrokerConfig"], ["updateTopicPerm", "-t", "T", "-p", "6"]],
)
def test_either_a_broker_or_a_cluster_must_be_given(command: list[str], words: list[str]) -> None:
    result = invoke([*command, *words])
    assert result.exit_code == 2
    assert "Give -b (a broker's address) or -c (a cluster), one of the two." in result.stderr


# ------------------------------------------------------------------------------------------------------------- output


def test_a_table_is_aligned_with_numbers_to_the_right() -> None:
    text = table(("Name", "Size", "Done"), [["a", 5, True], ["bcdefgh", 12.345, None]])
    assert text.splitlines() == [
        "#Name    #Size  #Done",
        "a            5  true",
        "bcdefgh  12.35",
    ]


def test_a_table_without_rows_is_its_head() -> None:
    assert table(("Name", "Size"), []) == "#Name  #Size"


def test_pairs_are_aligned() -> None:
    assert pairs({"a": 1, "long": None}) == "a    = 1\nlong ="
    assert pairs({}) == ""


@pytest.mark.parametrize("nothing", [None, 0, -1])
def test_no_time_is_no_text(nothing: int | None) -> None:
    assert local_time(nothing) == ""


def test_a_time_has_milliseconds() -> None:
    assert local_time(1_758_275_140_005).endswith(":40.005")
