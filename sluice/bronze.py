"""Bronze: the topics that land, with every record as it was received."""

from sluice.model.datasets import Topic, checked_name

__all__ = ["topic"]


def topic(name: str, *, topic: str | None = None, meaning: str = "") -> Topic:
    """Lands a topic of the log in the table `bronze.<name>`: the raw bytes, nothing dropped.

    Use `topic` if the topic's name is not a valid table name: `topic="shop.public.orders"`.
    """
    return Topic(checked_name("bronze", name), topic or name, meaning)
