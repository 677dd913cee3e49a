"""What peers can ask of a name server. Every handler is a plain function: it runs whole before anything else does."""
