"""What peers can ask of a broker. Every handler is a plain function: it runs whole before anything else does."""
