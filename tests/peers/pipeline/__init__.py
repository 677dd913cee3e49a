"""Our pipeline against real Apache RocketMQ. A package, so that its processes end with its last test."""
