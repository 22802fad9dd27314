"""The gate: planned tables are judged as they would be, and only a verdict can be committed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.engine.plan import Plan
from sluice.model.expectations import Expectation
from sluice.model.few_rows import are_keys, in_types_of, keys_of
from sluice.model.ledger import InputVersion
from sluice.model.small_frames import frame_of, known_rows, nullable
from sluice.quality.measure import Outcome, measure
from sluice.shapes.difference import operation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Verdict:
    """Plans and the outcomes of their gate; they are refused if an outcome is critical."""

    plans: tuple[Plan, ...]
    outcomes: tuple[Outcome, ...] = ()

    @property
    def broken(self) -> tuple[str, ...]:
        """The critical expectations that the tables would break."""
        return tuple(each.expectation.name for each in self.outcomes if each.is_critical)

    def over(self, inputs: Mapping[str, InputVersion]) -> "Verdict":
        """The same rows, as computed from other versions of the inputs."""
        return replace(self, plans=tuple(each.over(inputs) for each in self.plans))


def judge(plans: Sequence[Plan], gate: Sequence[Expectation]) -> Verdict:
    """Checks the dataset's own table, the last of the plans, as it would be; skipped if it does not change."""
    *others, own = plans
    if not gate or own.rows is None:
        return Verdict(tuple(plans))
    if own.change == "all" and own.small is None:
        # Looked at before it is written, and computed once.
        own = replace(own, rows=own.rows.localCheckpoint())
    return Verdict((*others, own), tuple(measure(prospect(own), gate, own.output.grain)))


def prospect(plan: Plan) -> "DataFrame":
    """The rows that the dataset's own table would have."""
    if plan.rows is None:
        raise ValueError(f"nothing is planned for {plan.output.table}")
    if plan.before is None:
        return plan.rows
    before = known_rows(plan.before)
    if before is not None and plan.small is not None and are_keys(before.schema, plan.output.grain):
        schema = cast(StructType, nullable(plan.before.schema))
        return frame_of(plan.before.sparkSession, rows_after(before, plan.small, plan.output.grain), schema)
    if plan.change == "added":
        return plan.before.unionByName(plan.rows)
    keys = plan.rows.select(*[F.col(name).alias(f"_changed_{name}") for name in plan.output.grain])
    same = [F.col(name).eqNullSafe(F.col(f"_changed_{name}")) for name in plan.output.grain]
    is_same = reduce(lambda left, right: left & right, same)
    new = plan.rows.where(F.col(operation) != "deleted").drop(operation)
    return plan.before.join(keys, is_same, "left_anti").unionByName(new)


def rows_after(before: pa.Table, changed: pa.Table, grain: Sequence[str]) -> pa.Table:
    """The rows of a table after a difference, or after rows were only added."""
    if operation in changed.column_names:
        replaced = set(keys_of(changed, grain))
        before = before.filter(pa.array([key not in replaced for key in keys_of(before, grain)], pa.bool_()))
        changed = changed.filter(pc.not_equal(changed[operation], pa.scalar("deleted"))).drop_columns([operation])
    return pa.concat_tables([in_types_of(each, before.schema) for each in (before, changed)])


@dataclass(frozen=True)
class Refusals:
    """The refusals by dataset and declaration, with their inputs, so that the same rows are not computed again."""

    known: "dict[tuple[str, str], tuple[dict[str, InputVersion], tuple[str, ...]]]" = field(default_factory=dict)

    def broken_by(self, made_of: tuple[str, str], inputs: Mapping[str, InputVersion]) -> tuple[str, ...]:
        """What the rows of these inputs broke; empty if they were not refused."""
        refused, broken = self.known.get(made_of, ({}, ()))
        return broken if refused == inputs else ()

    def add(self, made_of: tuple[str, str], inputs: Mapping[str, InputVersion], broken: tuple[str, ...]) -> None:
        self.known[made_of] = (dict(inputs), broken)
