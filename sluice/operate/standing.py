"""Stored queries: add one, remove it, and list those that there are."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from sluice.engine.catalogue import Catalogue
from sluice.errors import UsageError, hint
from sluice.log import AnyLog, Record, records_of_key
from sluice.model.condition import from_sql, text_of
from sluice.model.datasets import Dataset
from sluice.operate.query import connection
from sluice.shapes.standing import Standing
from sluice.storage.delta import Lake

# Changes of a query differ by as much at least.
least = timedelta(microseconds=1)


@dataclass(frozen=True)
class StoredQuery:
    """A version of a stored query: its condition in words, and when it is valid."""

    query_id: str
    condition: str
    match_past: bool
    valid_from: datetime
    valid_to: datetime | None
    attributes: Mapping[str, Any]


def standing(catalogue: Catalogue, name: str) -> tuple[Dataset, Standing]:
    """The dataset of that name, which must be one of standing queries."""
    found = {each.name: each for each in catalogue.datasets if isinstance(each.specification, Standing)}
    dataset = found.get(name)
    if dataset is None or not isinstance(dataset.specification, Standing):
        raise UsageError(
            f"{name} has no stored queries; {hint(name, found)}"
            + (f"there are those of {', '.join(found)}." if found else "declare it with silver.standing_queries.")
        )
    return dataset, dataset.specification


def add(
    log: AnyLog,
    catalogue: Catalogue,
    name: str,
    query_id: str,
    sql: str,
    *,
    past: bool,
    valid_from: datetime | None,
    attributes: Mapping[str, Any],
) -> None:
    """Appends a query, or a new version of it; a UsageError where it does not fit the columns."""
    dataset, specification = standing(catalogue, name)
    known = specification.rule.attributes
    unknown = [each for each in attributes if each not in known]
    if unknown:
        there_are = f"there are {', '.join(known)}" if known else "it declares none"
        raise UsageError(f"{name}: a query has no attribute {unknown[0]}; {hint(unknown[0], known)}{there_are}.")
    condition = from_sql(sql, dict(specification.rule.reads))
    append(log, dataset, query_id, valid_from, {"condition": condition, "match_past": past, **attributes})


def remove(
    log: AnyLog, lake: Lake, catalogue: Catalogue, name: str, query_id: str, *, valid_to: datetime | None
) -> None:
    """Appends that a query is deleted; a UsageError for one that nobody has stored."""
    dataset, _ = standing(catalogue, name)
    landed = [each.query_id for each in stored(lake, catalogue, name, all_versions=True)]
    waiting = (record for topic in topics_of(dataset) for record in records_of_key(log, topic, query_id))
    if query_id not in landed and next(waiting, None) is None:
        raise UsageError(
            f"{name} has no query {query_id}; {hint(query_id, landed)}list them with: sluice standing list {name}"
        )
    append(log, dataset, query_id, valid_to, {"is_deleted": True})


def append(log: AnyLog, dataset: Dataset, query_id: str, at: datetime | None, said: Mapping[str, Any]) -> None:
    if not query_id:
        raise UsageError("The id of a query is empty; give it an id, so that you can change and remove it.")
    changed_at = (at or next_moment(log, dataset, query_id)).astimezone(UTC)
    value = {"query_id": query_id, "changed_at": changed_at.isoformat().replace("+00:00", "Z"), **said}
    try:
        encoded = orjson.dumps(value)
    except TypeError as error:
        raise UsageError(f"The query cannot be written: {error}.") from error
    # Of several topics the first.
    log.append(topics_of(dataset)[0], [Record(encoded, key=query_id)])


def next_moment(log: AnyLog, dataset: Dataset, query_id: str) -> datetime:
    """Now, or just after the last change of a query: the clock of who made that one may have been ahead."""
    moments = [datetime.now(UTC)]
    for topic in topics_of(dataset):
        for record in records_of_key(log, topic, query_id):
            with suppress(ValueError, TypeError, KeyError):
                moments.append(datetime.fromisoformat(orjson.loads(record.value or b"")["changed_at"]) + least)
    return max(moments)


def topics_of(dataset: Dataset) -> Sequence[str]:
    """The topics in which the queries are stored."""
    (changes,) = dataset.inputs["queries"].source.upstream  # type: ignore[union-attr]
    return changes.topics


def stored(lake: Lake, catalogue: Catalogue, name: str, *, all_versions: bool) -> list[StoredQuery]:
    """The queries as they have landed: their current versions, or all."""
    _, specification = standing(catalogue, name)
    if specification.queries not in lake.tables():
        return []
    attributes = specification.rule.attributes
    extra = "".join(f', "{each}"' for each in attributes)
    with connection(lake, versions={specification.queries: None}) as found:
        rows = found.execute(
            f"SELECT query_id, condition, coalesce(match_past, false), valid_from, valid_to{extra} "
            f"FROM {specification.queries} WHERE is_current OR {all_versions} ORDER BY query_id, valid_from"
        ).fetchall()
    return [
        StoredQuery(query_id, text_of(condition), past, begin, end, dict(zip(attributes, more, strict=True)))
        for query_id, condition, past, begin, end, *more in rows
    ]
