"""What must hold between tables, as queries for the number of rows that break it; `sluice audit` counts them."""

from collections.abc import Mapping, Sequence


def of_history(table: str, keys: Sequence[str]) -> dict[str, str]:
    """A version ends after it begins, and before the next of its key begins."""
    names = ", ".join(f'"{key}"' for key in keys)
    following = f"lead(valid_from) OVER (PARTITION BY {names} ORDER BY valid_from)"
    return {
        "versions that overlap": (
            f"SELECT count(*) FROM (SELECT valid_from, valid_to, {following} AS following FROM {table}) "
            "WHERE valid_to <= valid_from OR (following IS NOT NULL AND (valid_to IS NULL OR valid_to > following))"
        )
    }


def of_same_rows(table: str, source: str, columns: Mapping[str, str]) -> dict[str, str]:
    """Every row of `source` is there once, and no other; `columns` maps its grain to the table's expressions."""
    return of_rows_kept(table, source, columns) | {
        f"rows not of {source}": f"SELECT count(*) FROM {table} AS own ANTI JOIN {source} AS source ON {same(columns)}",
        "rows that are there twice": (
            f"SELECT count(*) - (SELECT count(*) FROM (SELECT DISTINCT {', '.join(columns.values())} FROM {table})) "
            f"FROM {table}"
        ),
    }


def of_rows_kept(table: str, source: str, columns: Mapping[str, str]) -> dict[str, str]:
    """Every row of `source` is there, once or more."""
    return {
        f"rows of {source} that are missing": (
            f"SELECT count(*) FROM {source} AS source ANTI JOIN {table} AS own ON {same(columns)}"
        )
    }


def same(columns: Mapping[str, str]) -> str:
    """The condition that a row of the table is of a row of the source; nulls are equal."""
    return " AND ".join(f'own.{own} IS NOT DISTINCT FROM source."{name}"' for name, own in columns.items())
