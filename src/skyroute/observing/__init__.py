"""What machines that watch a server are told: counts of what it does, and whether it lives and is ready."""
