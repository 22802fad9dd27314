"""Commit: the one place that writes rows, and only with a verdict of the gate.

Each plan is one commit or none. The dataset's own table comes last: its commit moves the cursor, so a crash before it
repeats the work and changes nothing twice.
"""

from sluice.engine.gate import Verdict
from sluice.engine.plan import Plan
from sluice.model.ledger import RowCounts, no_rows
from sluice.storage.table_format import TableFormat


def commit(lake: TableFormat, verdict: Verdict) -> RowCounts:
    """Writes what was judged, or nothing where it is refused; returns the rows changed in the dataset's own table."""
    if verdict.broken:
        return no_rows
    *others, own = verdict.plans
    for plan in others:
        write(lake, plan)
    return write(lake, own.after(others))


def write(lake: TableFormat, plan: Plan) -> RowCounts:
    """Does what is planned for one table."""
    output, rows, entry, fence, small = plan.output, plan.rows, plan.entry, plan.fence, plan.small
    in_arrow = plan.stream if small is None else small
    table, find_by = output.table, output.find_by
    if rows is None:
        move_cursor(lake, plan)
    elif plan.change == "all":
        # Rows that are rolled back may be of a declaration with other columns.
        only, cluster_by = dict(output.slice), tuple(each for each in output.cluster_by if each in rows.columns)
        lake.replace_rows(
            rows, table, entry, fence, only=only, cluster_by=cluster_by, find_by=find_by, in_arrow=in_arrow
        )
        return RowCounts(inserted=lake.row_count(table))
    elif plan.change == "added":
        lake.append_rows(rows, table, entry, fence, cluster_by=output.cluster_by, find_by=find_by, in_arrow=in_arrow)
    else:
        condition, grain = output.condition(plan.scope, prefix="own."), output.grain
        lake.merge_rows(rows, table, entry, fence, grain=grain, condition=condition, find_by=find_by, small=small)
    return plan.counts


def move_cursor(lake: TableFormat, plan: Plan) -> None:
    """Notes in the dataset's own table what it is computed from now, where it does not say so already."""
    if plan.known is None or not plan.is_cursor:
        return
    # Of what another program altered to no effect, the ledger is to say that it was looked at.
    if plan.entry.cause == "altered" or not plan.known.entry.is_computed_from(plan.entry):
        lake.move_cursor(plan.output.table, plan.known.unchanged(plan.entry), plan.fence)
