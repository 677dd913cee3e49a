"""What an application holds."""
