"""Other doors into the log: HTTP, AMQP and StatsD. Each says that it has a record only when the log has it."""
