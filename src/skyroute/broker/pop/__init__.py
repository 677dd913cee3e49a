"""POP: messages with receipts, acknowledgements and redelivery."""
