"""The broker: keeps messages and gives them out."""
