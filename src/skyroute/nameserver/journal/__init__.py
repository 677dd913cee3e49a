"""Every change of a route, in order, on disk.

To read it: `schema` (what a record is), `recorder` (from the loop to the disk), `segments` (the files), `index`,
`retention`, and for readers `reader` and `verify`. The format is described in docs/journal.md.
"""
