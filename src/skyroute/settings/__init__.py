"""Settings under Java's names, the properties files that hold them, and replacing such files safely."""
