"""What readers are shown: the programs in `examples`, and those printed in the documents."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

PRINTED = {
    "send_and_consume.py": r"(sent \w+ OK\n|booked \d coffees paid order-\d\n){20,}",
    "ordered.py": r"(order-\d placed→paid→brewed→served\n){4}",
    "request_reply.py": r"42, if you asked for everything\n",
    "pull.py": r"read 100 messages\n",
    "script.py": r"(sent OK\n){3}read\nline 0\nline 1\nline 2\n",
    "transaction.py": r"ten COMMIT\ntoo much ROLLBACK\n",
}
"""What each example prints when all is well."""
NAME_SERVER = "127.0.0.1:9876"
"""Where programs in the documents look for a cluster."""


def programs(document: str) -> list[str]:
    """The programs in Python that a document shows."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def programs_for(name_servers: str) -> list[str]:
    """The programs in the documents that want a cluster, pointed at one."""
    shown = [*programs("README.md"), *programs("docs/client.md")]
    return [
        program.replace(NAME_SERVER, name_servers)
        for program in shown
        if NAME_SERVER in program and not wants_spark(program)
    ]


def wants_spark(program: str) -> bool:
    """Whether a program runs on Spark."""
    return "spark = session()" in program


def runs_for_ever(program: str) -> bool:
    """Whether a program serves until somebody stops it."""
    return "consumer.run()" in program
