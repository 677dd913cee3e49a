"""Message trace: records of sends and consumptions in a topic of their own, in the format of Apache's tools."""
