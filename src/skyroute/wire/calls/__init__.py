"""One file a family of calls: its requests and its replies, side by side."""
