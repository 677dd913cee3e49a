"""Request handlers of the broker. Each is a plain function; no other handler runs before it returns."""
