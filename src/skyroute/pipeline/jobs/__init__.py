"""Questions to the cluster's history, each a function from DataFrame to DataFrame."""
