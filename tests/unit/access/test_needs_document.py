from pathlib import Path

from skyroute.access.needs import needs_table

DOCUMENT = Path(__file__).parents[3] / "docs" / "security.md"


def test_the_document_has_the_table_of_needs() -> None:
    """Write the new table with: python -c "from skyroute.access.needs import needs_table; print(needs_table())"."""
    assert needs_table() in DOCUMENT.read_text(encoding="utf-8")
