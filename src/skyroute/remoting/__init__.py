"""Transports requests and responses over asyncio, without knowing their meaning.

- A server: `server`, `server_context`, `dispatch`, `stepwise`, `busy_polling`, `stall_detection`.
- A connection of a server: `connection`, `connection_opening`, `waiting_input`, `request_processing`,
  `pending_responses`, `response_writer`, `peer_calls`.
- Fairness and limits: `fair_queue`, `lane`, `limits`, `client_meters`, `free_memory`.
- A client's connection to a server: `client`, `signing`.
- For both: `address`, `background`, `errors`, `log_backoff`, `loops`, `tls`, `tls_settings`.
"""
