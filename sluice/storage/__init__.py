"""Where tables are kept: Delta, folders and object stores, and the right to write them."""
