"""Which broker groups serve a topic."""

from collections.abc import Collection, Iterable, KeysView
from functools import cache


class TopicIndex:
    """Topic to the names of its groups, in the order in which they began to serve it.

    Topics of one registration that the same groups serve share one tuple: forty thousand topics on eight groups cost
    little more than the dictionary.
    """

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, ...]] = {}
        self._own: dict[str, str] = {}
        """Each name to the one object of it that the table keeps; Python 3.12 keeps what `sys.intern` gets for ever."""
        self.edits = 0
        """Number of writes."""

    def __len__(self) -> int:
        return len(self._names)

    @property
    def topics(self) -> KeysView[str]:
        return self._names.keys()

    def serving(self, topic: str) -> tuple[str, ...]:
        return self._names.get(topic, ())

    def own(self, topics: Collection[str]) -> list[str]:
        """Return the table's own objects of names, which keep each only once. They stay until `remove`."""
        return list(map(self._own.setdefault, topics, topics))

    def own_name(self, topic: str) -> str:
        """Return the table's own object of one name, if it has one."""
        return self._own.get(topic, topic)

    def add(self, topics: Iterable[str], broker_name: str) -> None:
        """List a group as the last one of topics; an earlier entry is removed."""
        self.edits += 1
        names = self._names
        grown: dict[tuple[str, ...], tuple[str, ...]] = {}
        last: tuple[str, ...] | None = None
        after: tuple[str, ...] = ()
        for topic in topics:
            before = names.get(topic, ())
            if before is not last:  # neighbours mostly share a tuple, and a lookup in `grown` doubles the cost
                last, after = before, grown.setdefault(before, (*_without(before, broker_name), broker_name))
            names[topic] = after

    def remove(self, topics: Iterable[str], broker_name: str) -> None:
        """Remove a group from topics, and topics that no group serves with their names."""
        self.edits += 1
        names = self._names
        without = cache(lambda before: _without(before, broker_name))
        for topic in topics:
            if after := without(names.get(topic, ())):
                names[topic] = after
            else:
                names.pop(topic, None)
                self._own.pop(topic, None)


def _without(names: tuple[str, ...], broker_name: str) -> tuple[str, ...]:
    if broker_name not in names:
        return names
    at = names.index(broker_name)
    return names[:at] + names[at + 1 :]
