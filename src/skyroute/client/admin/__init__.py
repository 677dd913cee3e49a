"""What `mqadmin` is for, as calls: look at a cluster, and change it."""

from collections.abc import Sequence
from typing import Unpack

from skyroute.client.admin.face import Names, with_face
from skyroute.client.admin.messages import MessageAdmin
from skyroute.client.session.session import ClientArguments, Session

__all__ = ["Admin"]


@with_face
class Admin(MessageAdmin):
    """Looks at topics, groups, brokers, messages and offsets, and changes them.

    Examples:
        >>> async with Admin(name_servers="127.0.0.1:9876") as admin:
        ...     print(await admin.topics())
        ...     await admin.create_topic("Orders", cluster="DefaultCluster")

    With `namespace="tenant"`, topics and groups are called what the tenant's applications call them, and lists have
    only what is the tenant's own. Brokers, clusters and settings are everybody's.

    Every call raises ArgumentError if what it is given cannot be meant; nothing was asked then.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        session: Session | None = None,
        **client: Unpack[ClientArguments],
    ) -> None:
        """Take the addresses of name servers, or a session that others use as well. Nothing is connected yet.

        Raises:
            ArgumentError: an argument makes no sense.
            ClientError: there is no usable address of a name server.
            TlsError: the files for TLS cannot be used.
        """
        super().__init__(name_servers, session=session, **client)
        self._calls = MessageAdmin(session=self.session)
        namespace = self.session.namespace
        self._names = None if namespace is None else Names(namespace)
