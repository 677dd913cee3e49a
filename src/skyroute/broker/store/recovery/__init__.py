"""Recovery of a store at its start, after a crash or damage."""
