"""Jobs over journals and topics, each a function from DataFrame to DataFrame."""
