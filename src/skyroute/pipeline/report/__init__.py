"""The HTML report: `page` runs the jobs and lays out the page, `charts` draws SVG."""
