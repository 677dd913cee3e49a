"""Answers brokers and clients from a route table.

To read it: `server` (what exists), `handlers/brokers` (what a broker can say), `routing` (the nouns and the rules),
`handlers/routes` (the answers), `housekeeping` (what happens when nobody speaks).
"""
