"""The name server: brokers register with it, clients request routes from it.

Read `server` (parts and handlers), `handlers/brokers` (registration), `routing` (the route table and its rules),
`handlers/routes` (responses to clients), `housekeeping` (lease expiry).
"""
