"""Bronze: the topics that land, each record as it came."""

from sluice.model.datasets import Topic, checked_name

__all__ = ["topic"]


def topic(name: str, *, topic: str | None = None, meaning: str = "") -> Topic:
    """Declares that a topic of the log lands in the table `bronze.name`, raw bytes and nothing dropped.

    The topic has the same name, or another that could not name a table: `topic="shop.public.orders"`.
    """
    return Topic(checked_name("bronze", name), topic or name, meaning)
