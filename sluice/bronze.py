"""Bronze: the topics that land, with every record as it was received."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice.model.datasets import Topic, bronze_columns, checked_name, require_comments
from sluice.model.declared import declares

__all__ = ["topic"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> None:
        """The pages write `bronze.orders` for a topic that a project declares; this module has none."""
        raise AttributeError(
            f"sluice.bronze has no {name}; declare the topic, {name} = bronze.topic('{name}'), or import it from the "
            "module that does"
        )


@declares
def topic(
    name: str,
    *,
    topic: str | None = None,
    meaning: str = "",
    owner: str = "",
    comments: Mapping[str, str] | None = None,
) -> Topic:
    """Lands a topic of the log in the table `bronze.<name>`: the raw bytes, nothing dropped.

    Use `topic` if the topic's name is not a valid table name: `topic="shop.public.orders"`. `owner` is who answers for
    it, and `comments` say what its columns are, such as `{"value": "an order as JSON"}`.
    """
    full_name = checked_name("bronze", name)
    require_comments(full_name, comments or {}, bronze_columns)
    return Topic(full_name, topic or name, meaning, owner=owner, comments=dict(comments or {}))
