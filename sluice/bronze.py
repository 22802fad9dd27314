"""Bronze: the topics that land, each record as it came."""

from sluice.datasets import Topic, checked_name


def topic(name: str, *, meaning: str = "") -> Topic:
    """Declares that topic `name` of the log lands in the table `bronze.name`, raw bytes and nothing dropped."""
    return Topic(checked_name("bronze", name), name, meaning)
