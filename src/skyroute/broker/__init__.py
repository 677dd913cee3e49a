"""The broker: stores messages and delivers them."""
