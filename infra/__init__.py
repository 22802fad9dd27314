"""What surrounds the lakehouse: its sources and, later, its servers."""
