"""Integrity checks between tables, as queries for the number of rows that break them; `sluice audit` runs them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.model.datasets import Dataset


def of_dataset(dataset: "Dataset") -> dict[str, str]:
    """The integrity checks of every table, and of this one."""
    names = ", ".join(f'"{name}"' for name in dataset.outputs[-1].grain)
    twice = f"SELECT count(*) - 1 AS more FROM {dataset.name} GROUP BY {names} HAVING count(*) > 1"
    return {"rows that are there twice": f"SELECT coalesce(sum(more), 0) FROM ({twice})"} | dict(dataset.laws)


def of_history(table: str, changes: str, keys: Sequence[str], begins: str, ends: str | None) -> dict[str, str]:
    """A version ends after it begins and before the next of its key begins, and only a delete leaves a gap.

    `changes` is the table that it is made of, `begins` the column of it that says when one takes effect, and `ends` the
    condition that a `change` ends a version `own` for good; None where one change does not decide that.
    """
    names = ", ".join(f'"{key}"' for key in keys)
    following = f"lead(valid_from) OVER (PARTITION BY {names} ORDER BY valid_from)"
    found = {
        "versions with a wrong is_current": f"SELECT count(*) FROM {table} WHERE is_current <> (valid_to IS NULL)",
        "keys with two current versions": (
            f"SELECT count(*) FROM (SELECT {names} FROM {table} WHERE is_current GROUP BY ALL HAVING count(*) > 1)"
        ),
        "versions that overlap": (
            f"SELECT count(*) FROM (SELECT valid_from, valid_to, {following} AS following FROM {table}) "
            "WHERE valid_to <= valid_from OR (following IS NOT NULL AND (valid_to IS NULL OR valid_to > following))"
        ),
    }
    if ends is not None:
        found["gaps without a change that ends a version"] = (
            f"SELECT count(*) FROM (SELECT {names}, valid_to, {following} AS following FROM {table}) AS own "
            "WHERE valid_to IS NOT NULL AND (following IS NULL OR following > valid_to) "
            f"AND NOT EXISTS (SELECT 1 FROM {changes} AS change "
            f'WHERE change."{begins}" = own.valid_to AND ({ends}))'
        )
    return found


def ended_by_changes(keys: Sequence[str]) -> str:
    """A change ends the version of its key when it deletes it, or empties the table."""
    same_key = " AND ".join(f'change."{key}" IS NOT DISTINCT FROM own."{key}"' for key in keys)
    return f"change._change = 'truncate' OR (change._change = 'delete' AND {same_key})"


def ended_by_rows(keys: Sequence[str]) -> str:
    """Where only Spark can decide which row deletes: the end of a version requires some row of its key."""
    return " AND ".join(f'change."{key}" = own."{key}"' for key in keys)


def of_keys(table: str, source: str, keys: Sequence[str], required: Sequence[str]) -> dict[str, str]:
    """Every key of the source's usable rows is there, and no other."""
    usable = " AND ".join(f'"{name}" IS NOT NULL' for name in required)
    same_key = " AND ".join(f'own."{key}" = source."{key}"' for key in keys)
    of_source = f"(SELECT DISTINCT {', '.join(quoted(keys))} FROM {source} WHERE {usable}) AS source"
    return {
        f"keys of {source} that are missing": (
            f"SELECT count(*) FROM {of_source} ANTI JOIN {table} AS own ON {same_key}"
        ),
        f"keys not of {source}": f"SELECT count(*) FROM {table} AS own ANTI JOIN {of_source} ON {same_key}",
    }


def of_rows(source: str, required: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Rows that lack a key or a time are in no history, and no event."""
    lacks = " OR ".join(f'"{name}" IS NULL' for name in required)
    return {
        "usable_rows": (
            f"Rows of {source} have a value in {', '.join(required)}; others are left out.",
            f"SELECT count(*) FILTER ({lacks}), count(*), NULL FROM {source}",
        )
    }


def quoted(names: Sequence[str]) -> list[str]:
    return [f'"{name}"' for name in names]


def of_same_rows(table: str, source: str, columns: Mapping[str, str]) -> dict[str, str]:
    """Every row of `source` is there once, and no other; `columns` maps its grain to the table's expressions."""
    return of_rows_kept(table, source, columns) | of_no_others(table, source, columns)


def of_no_others(table: str, source: str, columns: Mapping[str, str]) -> dict[str, str]:
    """Every row is of a row of `source`."""
    return {
        f"rows not of {source}": f"SELECT count(*) FROM {table} AS own ANTI JOIN {source} AS source ON {same(columns)}",
    }


def of_rows_kept(table: str, source: str, columns: Mapping[str, str]) -> dict[str, str]:
    """Every row of `source` is there, once or more."""
    return {
        f"rows of {source} that are missing": (
            f"SELECT count(*) FROM {source} AS source ANTI JOIN {table} AS own ON {same(columns)}"
        )
    }


def of_elements(table: str, source: str, grain: Sequence[str], column: str, ordinal: str) -> dict[str, str]:
    """Every row of `source` has as many rows as its array has elements, which are numbered from 1, and no others."""
    pairs = {name: f'"{name}"' for name in grain}
    counted = (
        f'SELECT {", ".join(quoted(grain))}, count(*) AS _rows, max("{ordinal}") AS _last FROM {table} GROUP BY ALL'
    )
    return {
        f"rows of {source} that have not a row for each element": (
            f"SELECT count(*) FROM {source} AS source LEFT JOIN ({counted}) AS own ON {same(pairs)} "
            f'WHERE coalesce(len(source."{column}"), 0) <> coalesce(own._rows, 0) '
            "OR coalesce(own._last, 0) <> coalesce(own._rows, 0)"
        )
    } | of_no_others(table, source, pairs)


def of_ranks(table: str, groups: Sequence[str], function: str, rank: str, rows: int) -> dict[str, str]:
    """In each group the ranks begin with 1, follow one another as the function gives them, and end with `rows`."""
    partition = f"PARTITION BY {', '.join(quoted(groups))} " if groups else ""
    ranks = f'SELECT "{rank}" AS _own, {function}() OVER ({partition}ORDER BY "{rank}") AS _wanted FROM {table}'
    return {
        f"ranks with a gap or beyond {rows}": (
            f"SELECT count(*) FROM ({ranks}) WHERE _own IS DISTINCT FROM _wanted OR _own > {rows}"
        )
    }


def of_first_rows(table: str, source: str, groups: Sequence[str], rows: int) -> dict[str, str]:
    """Each group of `source` has `rows` rows there or more, or all that it has; groups are columns of both."""
    names = "".join(f"{name}, " for name in quoted(groups))
    both = f"SELECT {names}1 AS _own, 0 AS _all FROM {table} UNION ALL SELECT {names}0, 1 FROM {source}"
    counts = f"SELECT {names}sum(_own) AS _own, sum(_all) AS _all FROM ({both}) GROUP BY ALL"
    return {
        f"groups with fewer rows than {source} gives, or more": (
            f"SELECT count(*) FROM ({counts}) WHERE _own NOT BETWEEN least(_all, {rows}) AND _all"
        )
    }


def of_matches(table: str, keys: Sequence[str], within_us: int, *, is_apart: bool) -> dict[str, str]:
    """A match takes less than a time, and where the next one is looked for behind it, it ends before that begins."""
    span = "epoch_us(match_end) - epoch_us(match_start)"
    found = {
        "matches that end before they begin, or too late": (
            f"SELECT count(*) FROM {table} WHERE NOT ({span} BETWEEN 0 AND {within_us - 1})"
        )
    }
    if is_apart:
        names = ", ".join(quoted(keys))
        following = f"lead(match_start) OVER (PARTITION BY {names} ORDER BY match_start, match_end)"
        beside = f"SELECT match_end, {following} AS following FROM {table}"
        found["matches that overlap"] = f"SELECT count(*) FROM ({beside}) WHERE match_end > following"
    return found


def of_versions(table: str, queries: str, time: str) -> dict[str, str]:
    """Every match is of a version of its query that was in effect at the time of its row."""
    in_effect = (
        "version.query_id = own.query_id AND version.valid_from = own.query_valid_from AND "
        f'(version.matches_from IS NULL OR version.matches_from <= own."{time}") AND '
        f'(version.valid_to IS NULL OR own."{time}" < version.valid_to)'
    )
    return {
        f"matches without a version of {queries}": (
            f"SELECT count(*) FROM {table} AS own ANTI JOIN {queries} AS version ON {in_effect}"
        )
    }


def same(columns: Mapping[str, str]) -> str:
    """The condition that a row of the table is of a row of the source; nulls are equal."""
    return " AND ".join(f'own.{own} IS NOT DISTINCT FROM source."{name}"' for name, own in columns.items())


def of_dimension(
    table: str, alias: str, history: str, on: Mapping[str, str], *, is_inferred: bool
) -> dict[str, tuple[str, str]]:
    """A fact finds its version, and names a member that there is; `on` maps the history's keys to its columns."""
    keys = ", ".join(f'"{key}"' for key in on)
    same_key = " AND ".join(f'own."{column}" = member."{key}"' for key, column in on.items())
    is_named = " AND ".join(f'own."{column}" IS NOT NULL' for column in on.values())
    first = next(iter(on))
    is_unmatched = f'"{alias}" IS NULL' + (f' OR "{alias}".is_inferred' if is_inferred else "")
    return {
        f"{alias}_matched": (
            f"Each row has the version of {history} that was valid at its event time.",
            f"SELECT count(*) FILTER ({is_unmatched}), count(*), NULL FROM {table}",
        ),
        f"{alias}_known": (
            f"Each row that names a member of {history} names one that there is.",
            f'SELECT count(*) FILTER (member."{first}" IS NULL), count(*), NULL FROM {table} AS own '
            f"LEFT JOIN (SELECT DISTINCT {keys} FROM {history}) AS member ON {same_key} WHERE {is_named}",
        ),
    }


def of_records(table: str) -> dict[str, tuple[str, str]]:
    """Accepted records have no field that the schema lacks."""
    return {
        "known_fields": (
            "Records have no fields that the schema lacks.",
            "SELECT count(*) FILTER (_unknown_fields IS NOT NULL), count(*), "
            "(SELECT string_agg(name, ', ' ORDER BY name) FROM "
            f"(SELECT DISTINCT unnest(_unknown_fields) AS name FROM {table})) FROM {table}",
        )
    }
