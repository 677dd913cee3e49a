"""Delayed delivery: delay levels and timers."""
