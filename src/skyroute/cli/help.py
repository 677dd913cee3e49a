"""How commands explain themselves."""


def examples(*lines: str) -> str:
    """Return what stands below a command's help, as it is written here."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
