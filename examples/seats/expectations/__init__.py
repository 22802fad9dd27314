"""What must be true of each dataset: one suite a dataset, in the file of its name."""
