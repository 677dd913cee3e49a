"""The pages, one module for each part of a cluster; each lists its addresses in `ROUTES`."""
