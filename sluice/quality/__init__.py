"""What must be true of tables: measured, added up, and kept with the version that it was asked of."""
