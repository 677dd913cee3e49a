"""`skyroute store verify` and `skyroute store repair`."""
