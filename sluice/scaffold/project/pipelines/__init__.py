"""A lakehouse of orders: the topics that land, the tables made from them, and what people read."""
