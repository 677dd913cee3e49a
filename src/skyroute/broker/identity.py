"""Who a broker is, as everybody else knows it."""

from dataclasses import dataclass

from skyroute.message.host import encode_host


@dataclass(frozen=True, slots=True)
class Identity:
    """A broker's names and addresses. They stay the same for as long as it runs."""

    cluster: str
    name: str
    broker_id: int
    address: str
    """`host:port`, as clients reach it."""
    ha_address: str
    """`host:port`, where a slave would ask for the log."""
    raw_store_host: bytes
    """The address as records hold it."""

    @classmethod
    def at(
        cls, host: str, ip: str, port: int, *, cluster: str, name: str, broker_id: int, ha_address: str
    ) -> "Identity":
        """Return the identity of a broker that clients find as `host`, whose address is `ip`.

        Raises:
            HostError: the address is none.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return cls(cluster, name, broker_id, address, ha_address, encode_host(ip, port))
