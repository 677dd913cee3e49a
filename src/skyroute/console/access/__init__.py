"""Users, their sessions, and the audit log of what they change."""
