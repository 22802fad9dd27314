"""Rows that the driver has, in Arrow: found by conditions, matched and compared as Spark compares them."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.found import Among, Condition


def meeting(rows: pa.Table, conditions: Sequence[Condition]) -> pa.Table:
    """The rows that meet all conditions."""
    for each in conditions:
        rows = rows.filter(are_met(rows[each.column], each))
    return rows


def are_met(column: Any, condition: Condition) -> Any:
    """Value by value, whether a column meets a condition; null for null, which is at no time."""
    if isinstance(condition, Among):
        # Null is one of the values here.
        return pc.is_in(column, value_set=condition.values.cast(column.type))
    begun = pc.greater_equal(column, condition.start)
    return begun if condition.end is None else pc.and_(begun, pc.less(column, condition.end))


def matching(rows: pa.Table, few: pa.Table, match: Sequence[tuple[str, str]]) -> pa.Table:
    """The rows whose values are those of one of `few` rows, null for null; `match` pairs the columns of both."""
    wanted = set(keys_of(few, [name for _, name in match]))
    given = keys_of(rows, [column for column, _ in match])
    return rows.filter(pa.array([row in wanted for row in given], pa.bool_()))


def distinct(rows: pa.Table) -> pa.Table:
    """The rows, each once; all columns are keys (`are_keys`)."""
    places = {key: place for place, key in enumerate(keys_of(rows, rows.column_names))}
    return rows.take(pa.array(sorted(places.values()), pa.int64()))


def replaced(rows: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """The rows with other values in some columns, each in its place."""
    for name, values in columns.items():
        rows = rows.set_column(rows.column_names.index(name), name, values)
    return rows


def keys_of(rows: pa.Table, columns: Sequence[str]) -> list[tuple[object, ...]]:
    """The values of some columns, row by row."""
    return list(zip(*[comparable(rows[column]) for column in columns], strict=True))


def comparable(column: Any) -> list[Any]:
    """The values of a column in Python, where those that Spark takes for equal are equal.

    Times are numbers, since Python knows no year beyond 9999, and texts are bytes, since they may be no UTF-8.
    """
    return list(column.cast(comparable_type(column.type)).to_pylist())


def comparable_type(kind: pa.DataType) -> pa.DataType:
    """The type in whose values Python tells those of another type apart as Spark does."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(comparable_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, comparable_type(field.type)) for field in kind])
    return kind


def in_types_of(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, in its types, in which everything may be null."""
    return rows.select(schema.names).cast(pa.schema([(each.name, nullable(each.type)) for each in schema]))


def nullable(kind: pa.DataType) -> pa.DataType:
    """The same type, in which everything may be null."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, nullable(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(nullable(kind.key_type), nullable(kind.item_type))
    return kind


def are_comparable(schema: pa.Schema, grain: Sequence[str]) -> bool:
    """Whether rows of a schema, each with its key, are compared here as Spark compares them."""
    return are_keys(schema, grain) and all(is_comparable(kind) for kind in schema.types)


def are_keys(schema: pa.Schema, grain: Sequence[str]) -> bool:
    """Whether `keys_of` these columns are equal where Spark takes them for equal: Python has no NaN that is."""
    if not set(grain) <= set(schema.names):
        # Spark takes no notice of case.
        return False
    kinds = [schema.field(name).type for name in grain]
    return not any(pa.types.is_nested(kind) or pa.types.is_floating(kind) for kind in kinds)


def is_comparable(kind: pa.DataType) -> bool:
    """Whether rows are compared here: within structs and arrays Python takes no NaN for equal, and Spark each."""
    if pa.types.is_list(kind):
        return is_comparable(kind.value_type) and not pa.types.is_floating(kind.value_type)
    if pa.types.is_struct(kind):
        return all(is_comparable(field.type) and not pa.types.is_floating(field.type) for field in kind)
    return not pa.types.is_nested(kind)


def are_same(left: pa.Table, right: pa.Table) -> "pa.Array[Any]":
    """Row by row, whether two tables of the same columns have the same values: null is null, and NaN is NaN."""
    compute = cast(Any, pc)
    same = [is_same(left[name].combine_chunks(), right[name].combine_chunks()) for name in right.column_names]
    return reduce(compute.and_, same)


def is_same(left: Any, right: Any) -> "pa.Array[Any]":
    """Element by element, whether two arrays of one type have the same values."""
    compute = cast(Any, pc)
    if pa.types.is_nested(right.type):
        pairs = zip(comparable(left), comparable(right), strict=True)
        return pa.array([one == other for one, other in pairs], pa.bool_())
    either = [compute.fill_null(compute.equal(left, right), False), compute.and_(left.is_null(), right.is_null())]
    if pa.types.is_floating(right.type):
        either.append(compute.and_(*[compute.fill_null(compute.is_nan(each), False) for each in (left, right)]))
    return cast("pa.Array[Any]", reduce(compute.or_, either))
