"""Data about the cluster that pages show."""
