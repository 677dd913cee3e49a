"""`skyroute pipeline`: Spark jobs over journals and topics."""
