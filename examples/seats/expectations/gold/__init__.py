"""What must be true of gold."""
