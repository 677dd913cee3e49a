"""The data version of a broker's table as JSON."""

import msgspec

from skyroute.routing.registration import DataVersion
from skyroute.wire.command import Int64


class Version(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A data version as peers and files write it."""

    counter: Int64 = 0
    state_version: Int64 = 0
    timestamp: Int64 = 0

    @classmethod
    def of(cls, version: DataVersion) -> "Version":
        return cls(version.counter, version.state_version, version.timestamp_ms)

    def value(self) -> DataVersion:
        return DataVersion(self.state_version, self.timestamp, self.counter)


def version_members(version: DataVersion) -> dict[str, int]:
    """Return the members of a data version's JSON object."""
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp_ms}
