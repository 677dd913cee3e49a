"""Inspect and change a cluster, as `mqadmin` does."""

from skyroute.client.admin.access import AccessAdmin
from skyroute.client.admin.messages import MessageAdmin

__all__ = ["Admin"]


class Admin(MessageAdmin, AccessAdmin):
    """Inspects and changes topics, groups, brokers, messages, offsets, users and policies.

    Examples:
        >>> async with Admin(name_servers="127.0.0.1:9876") as admin:
        ...     print(await admin.topics())
        ...     await admin.create_topic("Orders", cluster="DefaultCluster")

    With `namespace="tenant"`, topics and groups have the names that the tenant's applications use, and lists contain
    only the tenant's own. Brokers, clusters and settings belong to no namespace.

    Every call raises ArgumentError for an invalid argument before it sends a request.
    """
