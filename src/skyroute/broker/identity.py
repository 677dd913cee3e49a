"""The names and addresses of a broker."""

from dataclasses import dataclass

from skyroute.message.host import encode_host


@dataclass(frozen=True, slots=True)
class Identity:
    """A broker's names and addresses, fixed while it runs."""

    cluster: str
    name: str
    broker_id: int
    address: str
    """`host:port` for clients."""
    raw_store_host: bytes
    """The address in the format of records."""

    @classmethod
    def at(cls, host: str, ip: str, port: int, *, cluster: str, name: str, broker_id: int) -> "Identity":
        """Return the identity of a broker with the advertised `host` and its address `ip`.

        Raises:
            HostError: `ip` is not an IP address.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return cls(cluster, name, broker_id, address, encode_host(ip, port))
