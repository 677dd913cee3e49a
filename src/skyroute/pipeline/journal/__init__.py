"""The name servers' journals in Spark: `reading` (lines to events), `epochs` (runs of a server), `state_changes`."""
