"""What people do with a running lakehouse: look at it, ask why, replay, check, maintain."""
