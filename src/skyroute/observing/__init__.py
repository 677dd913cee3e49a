"""Monitoring: request metrics, and HTTP pages for metrics and health."""
