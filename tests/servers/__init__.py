"""Real servers for tests: each a child process on loopback, with its own folder."""
