"""What must be true of silver."""
