"""Tables that a broker keeps in JSON files: topics, consumer groups, offsets, request modes."""
