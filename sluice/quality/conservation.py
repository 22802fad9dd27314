"""Conservation: every record that landed has exactly one fate in each dataset that consumes it, counted in SQL."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.model.datasets import Dataset
from sluice.shapes.fates import fates_table

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class Fates:
    """What became of the records of one topic in one dataset.

    `conflicts` are the duplicates that say something else than the accepted record of their key. `missing` counts
    records without a fate, `doubled` those with more than one, `unknown` fates of records that never landed. The audit
    balances when these three are zero.
    """

    dataset: str
    topic: str
    landed: int
    accepted: int
    duplicate: int
    conflicts: int
    quarantined: int
    late: int
    erased: int
    missing: int
    doubled: int
    unknown: int

    @property
    def balanced(self) -> bool:
        return self.missing == self.doubled == self.unknown == 0


audit_sql = """
WITH fates AS (
    SELECT _topic AS topic, _partition AS "partition", _offset AS "offset", 'accepted' AS fate, NULL AS reason
    FROM {dataset}
    UNION ALL
    SELECT topic, "partition", "offset", fate, reason FROM {fates} WHERE dataset = '{dataset}'
),
judged AS (
    SELECT topic, "partition", "offset", count(*) AS fates,
        count(*) FILTER (fate = 'accepted') AS accepted, count(*) FILTER (fate = 'duplicate') AS duplicate,
        count(*) FILTER (reason = 'other_payload') AS conflicts,
        count(*) FILTER (fate = 'quarantined') AS quarantined, count(*) FILTER (fate = 'late') AS late,
        count(*) FILTER (fate = 'erased') AS erased
    FROM fates WHERE topic = '{topic}' GROUP BY ALL
),
landed AS (SELECT "partition", "offset", count(*) AS times FROM {landed} GROUP BY ALL)
SELECT
    coalesce(sum(times), 0), coalesce(sum(accepted), 0), coalesce(sum(duplicate), 0), coalesce(sum(conflicts), 0),
    coalesce(sum(quarantined), 0), coalesce(sum(late), 0), coalesce(sum(erased), 0),
    count(*) FILTER (fates IS NULL), count(*) FILTER (fates > 1 OR times > 1),
    count(*) FILTER (times IS NULL)
FROM landed FULL JOIN judged USING ("partition", "offset")
"""


def fates_of(found: "duckdb.DuckDBPyConnection", dataset: Dataset, topic: str) -> Fates:
    """Adds up the fates of one topic's records in one dataset."""
    sql = audit_sql.format(dataset=dataset.name, fates=fates_table, topic=topic, landed=dataset.landed_in[topic])
    counts = found.execute(sql).fetchone()
    return Fates(dataset.name, topic, *(counts or ()))


def without_fates(found: "duckdb.DuckDBPyConnection") -> None:
    """Without the table no fate is known, and every record that is not accepted is missing one."""
    found.execute(
        f'CREATE TABLE {fates_table} (dataset TEXT, topic TEXT, "partition" INT, "offset" INT, fate TEXT, reason TEXT)'
    )
