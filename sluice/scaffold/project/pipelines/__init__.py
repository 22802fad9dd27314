"""A lakehouse of orders: what lands, what is made of it, and what people read."""
