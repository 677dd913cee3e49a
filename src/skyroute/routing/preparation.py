"""A long registration, compared with its broker group in steps, so that applying it is short.

Nothing here writes to the table. The table may change between the steps: it adds the topics that changed to `edited`,
and these are compared again.
"""

from collections.abc import Callable, Collection, Iterable

from skyroute.routing.group_state import GroupState, QueueDelta
from skyroute.routing.memory_estimate import topic_bytes
from skyroute.routing.registration_check import RegistrationCheck
from skyroute.routing.topology import QueueSettings


class Preparation:
    """What a registration changes in its group, and the group's queues as they will be."""

    def __init__(
        self,
        check: RegistrationCheck,
        known: GroupState | None,
        own: Callable[[Collection[str]], list[str]],
        *,
        delete_missing: bool,
    ) -> None:
        self.registration = check.registration
        self.table = check.table
        self._known = known
        self._own = own
        self._known_queues: dict[str, QueueSettings] = {} if known is None else known.queues
        self._whole = check.replaces_topics
        self.removes_missing = delete_missing and not check.table.mappings
        self.queues = dict(self._known_queues)
        """The group's queues after the registration."""
        self.added: dict[str, QueueSettings] = {}
        self.changed: dict[str, tuple[QueueSettings, QueueSettings]] = {}
        self.removed: dict[str, QueueSettings] = {}
        self.edited: set[str] = set()
        """Topics of the group that changed since the preparation began."""
        self.is_applied = False
        self._growth_bytes = 0

    @property
    def broker_name(self) -> str:
        return self.registration.broker_name

    @property
    def growth(self) -> int:
        return len(self.added) - len(self.removed)

    @property
    def growth_bytes(self) -> int:
        """Approximate growth of the table by topics, in bytes."""
        return self._growth_bytes

    def fits(self, check: RegistrationCheck, known: GroupState | None) -> bool:
        """Whether the preparation is still valid once `edited` topics have been compared again."""
        return (
            known is self._known
            and (known is None or known.queues is self._known_queues)
            and check.defines_topics
            and check.replaces_topics == self._whole
        )

    def compare(self, topics: Collection[str]) -> list[str]:
        """Compare topics of the registration; return those that are new to the group."""
        known, sent = self._known_queues, self.table.topics
        # Each registration has its own copies of names: keep one object of each. Decoding did so for settings.
        added = {topic: sent[topic] for topic in self._own([topic for topic in topics if topic not in known])}
        self.queues |= added
        self.added |= added
        self._growth_bytes += topic_bytes(added)
        if self._whole and len(added) < len(topics):
            both = ((topic, known[topic], sent[topic]) for topic in topics if topic in known)
            changed = {topic: (before, after) for topic, before, after in both if before != after}
            self.queues.update((topic, after) for topic, (_, after) in changed.items())
            self.changed |= changed
        return list(added)

    def compare_missing(self, topics: Iterable[str]) -> None:
        """Compare topics of the group; those that the registration does not name are removed."""
        known, sent = self._known_queues, self.table.topics
        removed = {topic: known[topic] for topic in topics if topic not in sent and topic in known}
        for topic in removed:
            del self.queues[topic]
        self.removed |= removed
        self._growth_bytes -= topic_bytes(removed)

    def compare_again(self, topics: Collection[str]) -> list[str]:
        """Compare topics that were edited since; return those that are new to the group."""
        for topic in topics:
            if self.added.pop(topic, None) is not None:
                self._growth_bytes -= topic_bytes((topic,))
            if self.removed.pop(topic, None) is not None:
                self._growth_bytes += topic_bytes((topic,))
            self.changed.pop(topic, None)
            before = self._known_queues.get(topic)
            if before is None:
                self.queues.pop(topic, None)
            else:
                self.queues[topic] = before
        if self.removes_missing:
            self.compare_missing(topics)
        return self.compare([topic for topic in topics if topic in self.table.topics])

    def delta(self, group: GroupState) -> QueueDelta:
        """Return what the registration changes in its group."""
        restored = group.restored_by(self.table, whole=self._whole)
        mappings = group.remapped_by(self.table, self.removed, whole=self._whole)
        return QueueDelta(self.added, self.changed, self.removed, restored, mappings, self._growth_bytes)
