"""The notebook in `examples` runs from its first cell to its last, as in Jupyter."""

import ast
import json
from typing import Any

import pytest

from tests.support.shown import ROOT

NOTEBOOK = json.loads((ROOT / "examples" / "spark_notebook.ipynb").read_text(encoding="utf-8"))


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last line, which Jupyter shows."""
    cell = ast.parse(source)
    last = cell.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(cell, "cell", "exec"), names)
        return None
    exec(compile(ast.Module(cell.body[:-1], []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.mark.usefixtures("spark")
def test_the_notebook_runs_from_a_cluster_to_a_chart() -> None:
    names: dict[str, Any] = {}
    cells = ["".join(each["source"]) for each in NOTEBOOK["cells"] if each["cell_type"] == "code"]
    try:
        shown = [run_cell(cell, names) for cell in cells]
    finally:
        if "cluster" in names:
            names["cluster"].kill()
            names["cluster"].wait()
            names["cluster"].stdout.close()
    assert sum(row.orders for row in names["rows"]) == 1_000
    charts = [each._repr_html_() for each in shown if hasattr(each, "_repr_html_")]
    assert ["Revenue" in charts[0], "Uptime" in charts[-1]] == [True, True]
    assert all("<svg" in chart for chart in charts)
    (broker,) = shown[-2]
    assert (broker.broker, broker.down_s, broker.outages) == ("broker-a", 0.0, 0)


def test_the_notebook_has_no_stored_output() -> None:
    assert not any(each.get("outputs") for each in NOTEBOOK["cells"])
