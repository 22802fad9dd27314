"""Real servers for tests: each a child process on loopback, with a folder of its own."""
