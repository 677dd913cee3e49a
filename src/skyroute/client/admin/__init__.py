"""What `mqadmin` is for, as calls: look at a cluster, and change it."""

from skyroute.client.admin.messages import MessageAdmin

__all__ = ["Admin"]


class Admin(MessageAdmin):
    """Looks at topics, groups, brokers, messages and offsets, and changes them.

    >>> async with Admin(name_servers="127.0.0.1:9876") as admin:
    ...     print(await admin.topics())
    ...     await admin.create_topic("Orders", cluster="DefaultCluster")
    """
