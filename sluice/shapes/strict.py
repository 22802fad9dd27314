"""Strict JSON: what is wrong with a text by RFC 8259, and the values of its members as the declared types.

Spark's reader stops after the first value, keeps the last of two members with one name, and rounds and guesses. Here
every text is one JSON value, and every value is what was written; anything else has the name of the rule it breaks.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.model.times import apart, is_epoch, is_time, lacks_offset, time_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

corrupt = "_corrupt"
faults = ("malformed_json", "trailing_content", "lone_surrogate", "duplicate_name", "wrong_type")
faults_of_time = ("invalid_time", "no_offset")
lenient = (
    "allowSingleQuotes",
    "allowComments",
    "allowNonNumericNumbers",
    "allowUnquotedFieldNames",
    "allowNumericLeadingZeros",
    "allowBackslashEscapingAnyCharacter",
    "allowUnquotedControlChars",
)
blank = r"[ \t\n\r]*+"
an_object_ends_in_an_array = rf"\}}{blank}\]"
number_text = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
# A number that is read as a double, and has more digits than each double keeps, or may become zero.
beyond_a_double = (
    r"-?(?:[0-9][0-9.]{38}|(?:[0-9]{16}|[0-9][0-9.]{16})[0-9.]*+[eE]|[0-9.]*[1-9][0-9.]*[eE]-0*+[1-9][0-9]{2})"
)
# How Spark writes a number with a fraction, or beyond the range of a double, into a column of text.
rewritten = r'\A(?:-?[0-9]+\.[0-9]+(?:E-?[0-9]+)?|"-?Infinity")\z'


def options(record_bytes_max: int) -> dict[str, str]:
    """How Spark's reader is to be: strict where it can be."""
    return {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": corrupt,
        "maxStringLen": str(record_bytes_max),
        **dict.fromkeys(lenient, "false"),
    }


def is_blank(text: "Column") -> "Column":
    # What begins as an object needs no regular expression.
    return ~text.startswith("{") & text.rlike(rf"\A{blank}\z")


def text_fault(text: "Column", is_corrupt: "Column", fault_of_names: "Column", reading: Mapping[str, str]) -> "Column":
    """Why a text is not one JSON value with unique names in each object; null if it is.

    `is_corrupt` is whether Spark's reader refused it, `fault_of_names` that of its members. If that reader accepted
    an object whose only closing brace is the last character, nothing follows it and no object is inside. Other
    texts are read once more.
    """
    is_flat = ~is_corrupt & has_one_closing_brace(text) & text.endswith("}") & ~has_surrogates(text)
    return F.when(is_flat, fault_of_names).otherwise(apart(text, lambda each: fault_of_any(each, is_corrupt, reading)))


def has_one_closing_brace(text: "Column") -> "Column":
    # Java splits at a single sign several times faster than Spark looks for one; a third part says enough.
    return F.size(F.split(text, "}", 3)) == 2


def names_fault(names: "Column") -> "Column":
    """The rule that the names of one object's members break, or null."""
    return F.when(F.size(F.array_distinct(names)) < F.size(names), "duplicate_name")


def fault_of_any(text: "Column", is_corrupt: "Column", reading: Mapping[str, str]) -> "Column":
    """The same of any text, by reading it once more, and again where there is a fault to be named."""
    return F.when(
        text.isNotNull() & (is_corrupt | ~is_strict(text)),
        F.when(is_corrupt & is_malformed(text, reading), "malformed_json")
        .when(~is_one_value(text), "trailing_content")
        .when(has_lone_surrogate(text), "lone_surrogate")
        .when(F.try_parse_json(text).isNull(), "duplicate_name"),
    )


def is_strict(text: "Column") -> "Column":
    """Whether a text is one JSON value, by a reader that refuses duplicate names and lone surrogates."""
    is_single = apart(
        F.try_parse_json(wrapped("[", text, "]")),
        lambda document: document.isNotNull() & F.try_variant_get(document, "$[1]", "variant").isNull(),
    )
    return is_single & (~text.rlike(an_object_ends_in_an_array) | is_single_as_member(text))


def is_one_value(text: "Column") -> "Column":
    """Whether nothing follows the value: it would have to begin both with `]` and with `}`."""
    return F.coalesce(F.json_array_length(wrapped("[", text, "]")) == 1, F.lit(False)) & is_single_as_member(text)


def is_single_as_member(text: "Column") -> "Column":
    return F.coalesce(F.size(F.json_object_keys(wrapped('{"v":', text, "}"))) == 1, F.lit(False))


def wrapped(before: str, text: "Column", after: str) -> "Column":
    return F.concat(F.lit(before), text, F.lit(after))


def is_malformed(text: "Column", reading: Mapping[str, str]) -> "Column":
    """Whether the first value is no JSON, whatever the declared types."""
    return F.coalesce(
        F.from_json(wrapped('{"v":', text, "}"), f"{corrupt} string", reading)[corrupt].isNotNull(), F.lit(True)
    )


def has_surrogates(text: "Column") -> "Column":
    return F.contains(text, F.lit(r"\ud")) | F.contains(text, F.lit(r"\uD"))


def has_lone_surrogate(text: "Column") -> "Column":
    r"""Whether half of a character is escaped without the other; `\\ud800` is an escaped backslash and letters."""
    escapes = F.regexp_replace(text, r"\\[^u]", "_")
    pair = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    return F.regexp_replace(escapes, pair, "_").rlike(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Typed:
    """How the values of a type are read from JSON, made, and refused.

    `formats` are those of times, by the path of names to them. `numbers_as_text`: NaN and the infinities are strings.
    """

    kind: T.DataType
    path: str
    formats: Mapping[str, str] = field(default_factory=dict)
    numbers_as_text: bool = False
    # Whether it is what an array has, which has no name in the text.
    is_item: bool = False

    @property
    def format(self) -> str | None:
        return self.formats.get(self.path.lower())

    @property
    def name(self) -> str:
        return self.kind.simpleString()

    def of(self, kind: T.DataType, name: str | None = None) -> "Typed":
        """The same of what is inside."""
        path = self.path if name is None else f"{self.path}.{name}"
        return Typed(kind, path, self.formats, self.numbers_as_text, is_item=name is None)

    @property
    def name_in_text(self) -> str | None:
        """The name of the member, as it mostly is in a text."""
        return None if self.is_item else json.dumps(self.path.rpartition(".")[2], ensure_ascii=False)

    @property
    def members(self) -> "dict[str, Typed]":
        """Those of a struct."""
        return {each.name: self.of(each.dataType, each.name) for each in self.kind.fields}  # type: ignore[attr-defined]

    @property
    def is_double_as_text(self) -> bool:
        return self.numbers_as_text and isinstance(self.kind, T.FloatType | T.DoubleType)

    @property
    def is_plain(self) -> bool:
        """Whether what Spark reads is the value."""
        if isinstance(self.kind, T.ArrayType):
            return self.of(self.kind.elementType).is_plain
        if isinstance(self.kind, T.StructType):
            return all(each.is_plain for each in self.members.values())
        return not (is_time(self.name) or isinstance(self.kind, T.DecimalType | T.ByteType) or self.is_double_as_text)

    @property
    def read(self) -> T.DataType:
        """The type that the JSON is read as."""
        if isinstance(self.kind, T.ArrayType):
            return T.ArrayType(self.of(self.kind.elementType).read)
        if isinstance(self.kind, T.StructType):
            return T.StructType([T.StructField(name, each.read) for name, each in self.members.items()])
        if isinstance(self.kind, T.DecimalType):
            # It keeps all digits; as text they would pass through a double.
            return T.VariantType()
        if isinstance(self.kind, T.ByteType):
            # Spark takes 200 for the byte that it would be without a sign.
            return T.ShortType()
        if is_time(self.name):
            return T.LongType() if is_epoch(self.format) else T.StringType()
        return T.StringType() if self.is_double_as_text else self.kind

    def value(self, read: "Column") -> "Column":
        """The value of what was read; null where it does not fit the type."""
        if self.is_plain:
            return read
        if isinstance(self.kind, T.ArrayType):
            return F.transform(read, self.of(self.kind.elementType).value)
        if isinstance(self.kind, T.StructType):
            made = [each.value(read.getField(name)).alias(name) for name, each in self.members.items()]
            return F.when(read.isNotNull(), F.struct(*made))
        if isinstance(self.kind, T.DecimalType):
            return decimal_of(read.cast("string"), self.kind)
        if is_time(self.name):
            return time_of(read, self.name, self.format)
        if self.is_double_as_text:
            read = F.when(read.rlike(rf"\A(?:NaN|-?Infinity|{number_text})\z"), read)
        return read.try_cast(self.kind)

    def fault(self, read: "Column", value: "Column", text: "Column") -> "Column | None":
        """The rule that what was read breaks, or null; None where none can be. `value` is what was made of it."""
        if isinstance(self.kind, T.ArrayType):
            inside = self.of(self.kind.elementType)
            if inside.fault(read, value, text) is None:
                return None
            return F.array_max(F.zip_with(read, value, lambda one, made: inside.known_fault(one, made, text)))
        if isinstance(self.kind, T.StructType):
            members = self.members.items()
            return first_of([each.fault(read.getField(name), value.getField(name), text) for name, each in members])
        if is_time(self.name):
            return F.when(read.isNotNull() & value.isNull(), apart(read, self.fault_of_time))
        broken = self.breaks_type(read, value, text)
        return None if broken is None else F.when(broken, "wrong_type")

    def known_fault(self, read: "Column", value: "Column", text: "Column") -> "Column":
        found = self.fault(read, value, text)
        return F.lit(None) if found is None else found

    def fault_of_time(self, read: "Column") -> "Column":
        column = self.path.partition(".")[0]
        lacking = F.when(lacks_offset(read, self.name, self.format), f"no_offset_{column}")
        return lacking.otherwise(f"invalid_time_{column}")

    def breaks_type(self, read: "Column", value: "Column", text: "Column") -> "Column | None":
        """Whether a value of another type than time changed by reading it; None if it never does."""
        if isinstance(self.kind, T.StringType):
            return is_altered(read, text, self.name_in_text)
        if isinstance(self.kind, T.DecimalType):
            is_number = read.isNotNull() & ~F.is_variant_null(read)
            return is_number & (value.isNull() | is_rounded(read, text, self.name_in_text))
        if isinstance(self.kind, T.ByteType):
            return read.isNotNull() & value.isNull()
        if self.is_double_as_text:
            return read.isNotNull() & (value.isNull() | (~read.endswith("Infinity") & is_infinite(value)))
        if isinstance(self.kind, T.FloatType | T.DoubleType):
            return is_infinite(read)
        return None


def first_of(faults: "list[Column | None]") -> "Column | None":
    """The first fault; None where none can be."""
    found = [each for each in faults if each is not None]
    return F.coalesce(*found) if found else None


def is_infinite(number: "Column") -> "Column":
    return F.abs(number) == float("inf")


def is_altered(value: "Column", text: "Column", name: str | None) -> "Column":
    """Whether a number in a column of text is not as it was written (1.10 becomes 1.1): the text has no such value."""
    is_suspect = F.contains(value, F.lit(".")) | value.isin('"Infinity"', '"-Infinity"')
    has_it = partial(has_value, text, name)
    return F.when(is_suspect, apart(value, lambda each: each.rlike(rewritten) & ~has_it(partial(as_written, each))))


def has_value(text: "Column", name: str | None, pattern: "Callable[[str], Column]") -> "Column":
    """Whether a text has a value of a pattern that is given what comes before: the member's name, if that is there.

    It may be there with escaped letters. Then, and in an array, a value may be that of any member.
    """
    of_any = F.rlike(text, pattern(rf"[:\[,]{blank}"))
    if name is None:
        return of_any
    return F.when(
        F.contains(text, F.lit(name)), F.rlike(text, pattern(rf"{re.escape(name)}{blank}:{blank}"))
    ).otherwise(of_any)


def as_written(value: "Column", behind: str) -> "Column":
    before, after = rf'{behind}"?+', rf'"?+{blank}[,}}\]]'
    # A text that has these quotation marks itself.
    quotation_mark = r'(?:\\"|\\u0022)'
    as_text = F.concat(F.lit(before + quotation_mark), F.translate(value, '"', ""), F.lit(quotation_mark + after))
    as_number = F.concat(F.lit(before + r"\Q"), value, F.lit(r"\E" + after))
    return F.when(value.startswith('"'), as_text).otherwise(as_number)


def is_rounded(number: "Column", text: "Column", name: str | None) -> "Column":
    """Whether a number may have lost digits: a variant is a double beyond 38 of them, or where there is an exponent."""
    is_beyond = has_value(text, name, lambda before: F.lit(before + beyond_a_double))
    return (F.schema_of_variant(number) == "DOUBLE") & is_beyond


def decimal_of(text: "Column", kind: T.DecimalType) -> "Column":
    """The decimal of a number, null where the type cannot represent it exactly."""
    whole, scale = max(kind.precision - kind.scale, 1), max(kind.scale, 1)
    usual = rf"\A-?(?!0[0-9])[0-9]{{1,{whole}}}(?:\.[0-9]{{1,{scale}}})?\z"
    if kind.scale == 0:
        usual = rf"\A-?(?!0[0-9])[0-9]{{1,{whole}}}\z"
    exact = apart(text, lambda each: exact_decimal_of(each, kind))
    return F.when(text.rlike(usual), text.try_cast(kind)).when(text.isNotNull(), exact)


def exact_decimal_of(text: "Column", kind: T.DecimalType) -> "Column":
    digits = F.regexp_replace(text, r"\A-|\.|[eE].*\z", "")
    exponent = F.coalesce(F.regexp_extract(text, r"[eE](.*)\z", 1).try_cast("int"), F.lit(0))
    fraction = F.length(F.regexp_extract(text, r"\.([0-9]+)", 1)) - exponent
    zeros = F.length(F.regexp_extract(digits, r"(0*)\z", 1))
    is_exact = (zeros == F.length(digits)) | (fraction - zeros <= kind.scale)
    return F.when(text.rlike(rf"\A{number_text}\z") & is_exact, text.try_cast(kind))


def row_type(typed: Mapping[str, Typed]) -> T.StructType:
    """What the JSON of a row is read as."""
    return T.StructType([T.StructField(name, each.read) for name, each in typed.items()])


def value_fault(typed: Mapping[str, Typed], read: "Column", text: "Column") -> "Column":
    """The first rule that a value of a row breaks, in the order of the columns; null for none.

    The values are in separate columns.
    """
    found = first_of([each.fault(read.getField(name), F.col(f"`{name}`"), text) for name, each in typed.items()])
    return F.lit(None).cast("string") if found is None else found
