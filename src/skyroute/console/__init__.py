"""A cluster in a web browser: a page over the admin client, for clusters of Apache's servers, of ours, or of both."""
