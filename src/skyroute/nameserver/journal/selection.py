"""Which records somebody asked for."""

from dataclasses import dataclass, field
from typing import Final

from skyroute.nameserver.journal.schema import Kind, Record

_OF_ALL: Final = frozenset({Kind.SERVER_STARTED, Kind.SERVER_STOPPED, Kind.GAP})


@dataclass(slots=True)
class Selection:
    """Records of a topic, a broker, a kind, a time. Show it every record in order: it learns who serves the topic.

    A topic's story is not only where it is named: the brokers that serve it come and go, too.
    """

    topic: str | None = None
    broker: str | None = None
    kind: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    _serving: set[str] = field(default_factory=set)

    def wants(self, record: Record) -> bool:
        """Whether this record is among them. Starts, stops and gaps of that time are, unless a kind is asked for."""
        concerns_topic = self.topic is None or self._concerns_topic(record, self.topic)
        if self.since_ms is not None and record.wall_ms < self.since_ms:
            return False
        if self.until_ms is not None and record.wall_ms > self.until_ms:
            return False
        if self.kind is not None and record.kind != self.kind:
            return False
        if record.kind in _OF_ALL:
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
