"""Files of a store: segments, JSON files, checkpoints, and the disk beneath them."""
