"""Writes rows to topics, of a batch or of a stream; `writers` is where Spark comes in."""

from skyroute.pipeline.sink.writers import stream_writer as stream_writer
from skyroute.pipeline.sink.writers import writer as writer
