"""Settings of servers: RocketMQ's names and properties files outside, our fields and units inside."""
