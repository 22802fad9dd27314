"""What an expression of a table must not be: one that depends on when, where or in which order it is computed."""

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from sluice.errors import DeclarationError
from sluice.model.sql import fold, other_each_time, parse, quoted
from sluice.model.words import is_text_of, names, tokens_of

if TYPE_CHECKING:
    from sqlglot import exp

# What gives another value each time, or one that depends on the order in which rows happen to be read.
not_of_the_row = names(
    """
    aes_encrypt curdate current_catalog current_database current_date current_schema current_time current_timestamp
    current_timezone current_user getdate input_file_block_length input_file_block_start input_file_name
    java_method localtimestamp monotonically_increasing_id now proctime rand randn random randstr reflect
    session_user shuffle spark_partition_id sysdate try_reflect uniform unix_timestamp user uuid version
    """
)
of_some_row = names(
    """
    any_value array_agg collect_list collect_set first first_value group_concat last last_value list_agg
    listagg mode string_agg
    """
)
# They are null where a sum on the way leaves its type, even if the whole does not.
with_sums_on_the_way = names("try_avg try_sum")
# With an OVER whose order is total these are certain.
ordered_by_over = names("any_value first first_value last last_value")
time_types = ("DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ")
times_of_the_query = names("now today tomorrow yesterday")
several_rows = names(
    """
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack unnest
    variant_explode variant_explode_outer
    """
)


def require_certain(dataset: str, option: str, text: str) -> None:
    """A DeclarationError where an expression depends on more than the row, or the rows of a group."""
    reason = uncertainty(text)
    if reason is not None:
        raise DeclarationError(f"{dataset}: {option}: {reason}")


def uncertainty(text: str) -> str | None:
    """Why an expression may have several values for the same rows; None where nothing shows that it has."""
    parsed = parse(text)
    nodes = () if parsed is None else parsed.walk()
    faults = (*map(fault_of_node, nodes), *(fault_of_call(*each) for each in functions_of(text)), fault_of_times(text))
    return next((each for each in faults if each), None)


def fault(text: str) -> str | None:
    """Why an expression cannot be one of a table in SQL: its value is not certain, or its columns or rows are not."""
    parsed = parse(text)
    if parsed is None:
        return f"'{text[:60]}' cannot be read"
    faults = (uncertainty(text), *map(fault_of_star, parsed.walk()), *map(fault_of_rows, functions_of(text)))
    return next((each for each in faults if each), None)


def fault_of_node(node: "exp.Expr") -> str | None:
    from sqlglot import exp

    is_test_of_array = isinstance(node, exp.Exists) and node.args.get("expression")
    if isinstance(node, exp.Query | exp.Exists) and not is_test_of_array:
        return "a SELECT within an expression; write LEFT SEMI JOIN, LEFT ANTI JOIN or LEFT JOIN instead"
    if isinstance(node, exp.Placeholder | exp.Parameter | exp.SessionParameter | exp.Command):
        return "this is a placeholder, and nothing is put into the text of a table"
    if isinstance(node, exp.Collate):
        return "COLLATE takes different texts for one, and which of them is kept is not stated; write lower(…)"
    return None


def fault_of_star(node: "exp.Expr") -> str | None:
    from sqlglot import exp

    if isinstance(node, exp.Star) and node.parent and not is_star_of_table(node) and not is_count_of_all(node):
        return "* within an expression would change with the table that is read; name the columns"
    return None


def is_star_of_table(node: "exp.Expr") -> bool:
    """Whether it is all of `o.*`."""
    return node.parent is not None and node.parent.parent is None and node.arg_key == "this"


def is_count_of_all(node: "exp.Expr") -> bool:
    from sqlglot import exp

    return isinstance(node.parent, exp.Count)


def fault_of_call(name: str, at: int, words: list[str]) -> str | None:
    if name in not_of_the_row and not (name == "unix_timestamp" and words[at + 2 : at + 3] != [")"]):
        return other_each_time(name)
    if name in with_sums_on_the_way:
        plain = name.removeprefix("try_")
        return (
            f"what {name} gives depends on the order in which rows are read, where a sum on the way is too large; "
            f"write {plain}(value), of a bigint {plain}(CAST(value AS decimal(20,0)))"
        )
    is_over = "over" in words and name in ordered_by_over
    is_sorted = at > 1 and words[at - 2] in ("array_sort", "sort_array", "size", "array_size", "cardinality")
    if name in of_some_row and not is_sorted and not is_over:
        return (
            f"what {name} gives depends on the order in which rows are read; write max_by(value, order), or "
            "array_sort(collect_list(value))"
        )
    return None


def fault_of_rows(call: tuple[str, int, list[str]]) -> str | None:
    name, _, _ = call
    if name in several_rows:
        return f"{name} makes several rows of one, which no column tells apart; do it in Python"
    return None


def fault_of_times(text: str) -> str | None:
    """Why a time is none: Spark takes DATE 'today' and TIMESTAMP 'now UTC' for those of the query."""
    found = tokens_of(text)
    for kind, each in pairwise(found):
        said = each.text.split()[:1]
        if kind.text.upper() in time_types and is_text_of(each, text) and said and fold(said[0]) in times_of_the_query:
            return f"{kind.text.upper()} '{each.text[:40]}' is another time at each query; use a column of the row"
    return None


def fault_of_variables(text: str, tables: Collection[str]) -> str | None:
    """Why a lambda is unclear: its variable has the name of a table."""
    from sqlglot import exp

    parsed = parse(text)
    lambdas = () if parsed is None else parsed.find_all(exp.Lambda)
    wrong = [each.name for node in lambdas for each in node.expressions if fold(each.name) in tables]
    return f"{wrong[0]} is both a table here and a variable; call the variable otherwise" if wrong else None


def functions_of(text: str) -> Iterator[tuple[str, int, list[str]]]:
    """The functions that an expression calls, those without brackets too, with their places among all words."""
    found = tokens_of(text)
    words = ["" if quoted(each) else fold(each.text) for each in found]
    for at, name in enumerate(words):
        before, after = words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else ""
        is_bare = name.startswith(("current_", "local", "session_")) and name in not_of_the_row and after != "."
        if before != "." and (after == "(" or is_bare):
            yield name, at, words
