"""Change capture: the rows of a database and every change after them, in Debezium's envelope, into the log."""
