"""The cluster's data that pages show: polled state, diagnostics, messages and journals."""
