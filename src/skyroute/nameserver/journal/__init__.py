"""The journal: every change of a route, in order, on disk.

Read in this order: `schema` (a record), `recorder` (from the event loop to disk), `segments` (the files), `index`,
`retention`; then `reader` and `verify`. docs/journal.md describes the format.
"""
