"""Files of a store: segments, checkpoint, JSON files, abort file and lock."""
