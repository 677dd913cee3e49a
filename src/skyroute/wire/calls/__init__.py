"""Requests and responses, one module for each kind of request: its values, and functions that encode and decode them.

- Routes: `registration`, `registration_body`, `route`, `watch`, `kv`, `mapping`, `static_topics`.
- Messages: `send`, `send_back`, `pull`, `transaction`, `query`.
- Popped messages: `pop`, `pop_receipts`, `pop_acks`, `pop_records`.
- Clients and groups: `clients`, `connections`, `consumers`, `groups`, `assignment`, `offsets`, `progress`.
- Servers: `topics`, `settings`, `access`, `controller`, `controller_responses`, `broker_epochs`, `replication`.
"""
