"""The pages; each module has its routes in `ROUTES`."""
