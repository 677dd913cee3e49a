"""Writes rows to topics, in batches and streams. Spark calls `writers`."""

from skyroute.pipeline.sink.writers import stream_writer as stream_writer
from skyroute.pipeline.sink.writers import writer as writer
