"""Receivers append to the log what HTTP, AMQP or StatsD send, and acknowledge a record once the log has it."""
