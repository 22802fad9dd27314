"""The columns of a record that are not fields of its value, each with the rule that it breaks."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.model.record_columns import RecordColumn, columns_of
from sluice.model.times import is_epoch, is_time, time_of
from sluice.shapes import strict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

    from sluice.shapes.parse import Parsing

invalid_key = "invalid_key"
whole_number = r"\A-?(?:0|[1-9][0-9]*)\z"


def read_columns(parsing: "Parsing") -> "list[Column]":
    """What of a bronze record the columns are made of: its key as text and as JSON, and each of the others."""
    wanted = columns_of(parsing.record_columns)
    found = [raw(each).alias(f"_raw_{name}") for name, each in wanted.items() if not is_member(each)]
    members = members_of(parsing)
    if members:
        key = F.col("key").cast("string")
        kind = T.StructType([*strict.row_type(members), T.StructField(strict.corrupt, T.StringType())])
        options = strict.options(parsing.record_bytes_max)
        found += [key.alias("_key_text"), F.from_json(key, kind, options).alias("_key_read")]
    return found


def raw(column: RecordColumn) -> "Column":
    if column.of == "value IS NULL":
        return F.col("value").isNull()
    return F.col("headers").getItem(column.name) if column.of == "headers" else F.col(column.of)


def is_member(column: RecordColumn) -> bool:
    """Whether it is a member of a key that is a JSON object."""
    return column.of == "key" and column.name is not None


def members_of(parsing: "Parsing") -> dict[str, strict.Typed]:
    """How the members of the key are read, by their names there."""
    wanted = columns_of(parsing.record_columns)
    return {str(each.name): member(parsing, name, str(each.name)) for name, each in wanted.items() if is_member(each)}


def member(parsing: "Parsing", column: str, name: str) -> strict.Typed:
    """How a member is read, with the time formats of its column."""
    before, formats = column.lower(), parsing.declared[column].formats
    of_column = {path: each for path, each in formats.items() if path == before or path.startswith(f"{before}.")}
    renamed = {f"{name.lower()}{path.removeprefix(before)}": each for path, each in of_column.items()}
    return strict.Typed(parsing.declared[column].kind, name, renamed)


def value(parsing: "Parsing", name: str, column: RecordColumn) -> "Column":
    """The value of one column; null where it does not fit its type."""
    typed, found = parsing.declared[name], F.col(f"`_raw_{name}`")
    if is_member(column):
        inside = str(column.name)
        return member(parsing, name, inside).value(F.col("_key_read").getField(inside))
    if not column.is_text or isinstance(typed.kind, T.BinaryType):
        return found
    return of_text(found.cast("string"), typed)


def of_text(text: "Column", typed: strict.Typed) -> "Column":
    """The value that a text says; null where it says none of this type."""
    kind = typed.kind
    if isinstance(kind, T.BooleanType):
        return F.when(text.isin("true", "false"), text == "true")
    if isinstance(kind, T.IntegralType):
        return F.when(text.rlike(whole_number), text.try_cast(kind))
    if isinstance(kind, T.DecimalType):
        return strict.decimal_of(text, kind)
    if isinstance(kind, T.FractionalType):
        number = F.when(text.rlike(rf"\A{strict.number_text}\z"), text.try_cast(kind))
        return F.when(~strict.is_infinite(number), number)
    if is_time(typed.name):
        read = F.when(text.rlike(whole_number), text.try_cast("bigint")) if is_epoch(typed.format) else text
        return time_of(read, typed.name, typed.format)
    return text


def fault(parsing: "Parsing") -> "Column | None":
    """The first rule that these columns break; None where there are none."""
    wanted: Mapping[str, RecordColumn] = columns_of(parsing.record_columns)
    return strict.first_of([*fault_of_key(parsing), *[fault_of(parsing, name, each) for name, each in wanted.items()]])


def fault_of_key(parsing: "Parsing") -> "list[Column | None]":
    """Whether a key is no JSON object, where its members are columns."""
    if not members_of(parsing):
        return []
    text, is_corrupt = F.col("_key_text"), F.col("_key_read").getField(strict.corrupt).isNotNull()
    options = strict.options(parsing.record_bytes_max)
    found = strict.text_fault(text, is_corrupt, strict.names_fault(F.json_object_keys(text)), options)
    is_wrong = ~F.is_valid_utf8(text) | strict.is_blank(text) | is_corrupt | found.isNotNull()
    return [F.when(text.isNotNull() & is_wrong, invalid_key)]


def fault_of(parsing: "Parsing", name: str, column: RecordColumn) -> "Column | None":
    typed = parsing.declared[name]
    made = F.col(f"`{name}`")
    if is_member(column):
        inside = str(column.name)
        read = F.col("_key_read").getField(inside)
        found = member(parsing, name, inside).fault(read, made, F.col("_key_text"))
        return None if found is None else F.when(found.isNotNull(), invalid_key)
    if not column.is_text or isinstance(typed.kind, T.BinaryType):
        return None
    text = F.col(f"`_raw_{name}`").cast("string")
    broken = typed.fault_of_time(text) if is_time(typed.name) else F.lit("wrong_type")
    if isinstance(typed.kind, T.StringType):
        broken = F.lit(invalid_key if column.of == "key" else "wrong_type")
        return F.when(~F.is_valid_utf8(text), broken)
    return F.when(text.isNotNull() & made.isNull(), broken)
