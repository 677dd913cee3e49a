"""Request handlers of the name server: plain functions without `await`, so each runs to its end."""
