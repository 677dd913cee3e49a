"""The name servers' journals in Spark: `schema`, `reading` (lines to events), `facts` (events to what is so)."""
