"""Selects records by topic, broker, kind and time."""

from dataclasses import dataclass, field
from typing import Final

from skyroute.nameserver.journal.schema import Kind, Record

_ALWAYS_SHOWN: Final = frozenset({Kind.SERVER_STARTED, Kind.SERVER_STOPPED, Kind.GAP})


@dataclass(slots=True)
class Selection:
    """A filter for records. Pass it every record in order: it keeps track of the brokers that serve the topic.

    Records of a topic include the changes of these brokers, even if the record does not name the topic.
    """

    topic: str | None = None
    broker: str | None = None
    kind: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    _serving: set[str] = field(default_factory=set)

    def wants(self, record: Record) -> bool:
        """Return whether a record matches. Starts, stops and gaps in the time range match unless a kind is given."""
        concerns_topic = self.topic is None or self._concerns_topic(record, self.topic)
        if self.since_ms is not None and record.wall_ms < self.since_ms:
            return False
        if self.until_ms is not None and record.wall_ms > self.until_ms:
            return False
        if self.kind is not None and record.kind != self.kind:
            return False
        if record.kind in _ALWAYS_SHOWN:
            return True
        return concerns_topic and (self.broker is None or record.broker == self.broker)

    def _concerns_topic(self, record: Record, topic: str) -> bool:
        if record.kind == Kind.SERVER_STARTED:
            self._serving.clear()
        named, broker = topic in record.topics or record.key == topic, record.broker
        if broker is None:
            return named
        if topic in (record.added or ()):
            self._serving.add(broker)
        elif topic in (record.removed or ()):
            self._serving.discard(broker)
        return named or (broker in self._serving and not record.topics)
