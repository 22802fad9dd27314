"""Programs that stand for the systems which events come from."""
