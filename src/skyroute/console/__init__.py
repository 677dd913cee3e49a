"""A web console for clusters of Skyroute or Apache RocketMQ servers."""
