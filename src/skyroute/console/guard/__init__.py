"""Who may use the console: connections, sessions, users, audit."""
