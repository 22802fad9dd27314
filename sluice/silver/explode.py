"""Elements of an array as rows: one row for each, with its place in the array."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.errors import DeclarationError
from sluice.model import integrity as laws
from sluice.model.datasets import Dataset, Output, checked_name, documented, require_columns_of, same_names
from sluice.model.ddl import column_types, require_names, require_unreserved
from sluice.model.declared import declares
from sluice.model.join import by_key
from sluice.model.lineage import Lineage, Made, same, taken
from sluice.model.specification import Specification
from sluice.shapes.elements import Elements, elements


@dataclass(frozen=True)
class Exploded(Specification):
    """The elements of an array of each row of a table."""

    kind, version = "exploded rows", 1
    source: str
    elements: Elements


@declares
def explode(
    name: str,
    *,
    source: Dataset,
    column: str,
    ordinal: str = "ordinal",
    prefix: str = "",
    meaning: str = "",
    owner: str = "",
    comments: Mapping[str, str] | None = None,
) -> Dataset:
    """One row for each element of an array in the rows of a table, with all other columns of its row.

    `ordinal` names the column of the element's place, which counts from 1; with it the grain of the source is that of
    the table. The fields of a struct become columns, with `prefix` before their names; another element keeps the name
    of the array. A row whose array is null or empty has no rows here.

    The records are judged where they are parsed, so each has one fate, however many elements it has.
    """
    full_name = checked_name("silver", name)
    if not isinstance(source, Dataset):
        raise DeclarationError(f"{full_name}: source is a table, such as silver.events; a topic has no columns yet")
    if source.columns is None:
        raise DeclarationError(f"{full_name}: only the shape of {source.name} knows its columns; explode before it")
    require_columns_of(full_name, "column", (column,), source)
    kind = source.columns[column] or ""
    found = re.fullmatch(r"(?s)array<(.*)>", kind)
    if found is None:
        raise DeclarationError(
            f"{full_name}: {column} of {source.name} is {kind or 'of an unknown type'}, and no array"
        )
    grain = source.outputs[-1].grain
    if column in grain:
        raise DeclarationError(f"{full_name}: {column} identifies the rows of {source.name}, so it has to stay")
    fields = fields_of(found[1])
    kept = {each: kind for each, kind in source.columns.items() if each != column and not each.startswith("_")}
    made = {f"{prefix}{each}": kind for each, kind in fields.items()} if fields else {f"{prefix}{column}": found[1]}
    require_new(full_name, [*kept, ordinal, *made])
    rule = Elements(
        grain=grain,
        kept=tuple(kept),
        column=column,
        ordinal=ordinal,
        fields=tuple(zip(fields, made, strict=True)) if fields else (),
        name=None if fields else f"{prefix}{column}",
    )
    exploded = Dataset(
        name=full_name,
        inputs={"rows": by_key(source, grain)},
        outputs=(
            Output(
                full_name,
                grain=(*grain, ordinal),
                scope_columns=same_names(grain),
                cluster_by=(source.event_time,) if source.event_time in kept else grain,
            ),
        ),
        shape=lambda rows, own: elements(rows["rows"], rule),
        specification=Exploded(source.name, rule),
        meaning=meaning,
        keys=(*grain, ordinal),
        event_time=source.event_time if source.event_time in kept else None,
        columns={**kept, ordinal: "int", **made},
        scope_of=lambda own: own.select(*grain),
        laws=laws.of_elements(full_name, source.name, grain, column, ordinal),
        lineage=lambda: Lineage(
            {
                **same(source.name, kept),
                ordinal: Made(taken(source.name, (column,), "transformation"), by=f"the place in {column}"),
                **{
                    each: Made(taken(source.name, (column,), "transformation"), by=f"an element of {column}")
                    for each in made
                },
            },
            taken(source.name, (column,), "filter"),
        ),
    )
    return documented(exploded, owner, comments)


def fields_of(kind: str) -> dict[str, str]:
    """The fields of a struct with their types; nothing of another type."""
    found = re.fullmatch(r"(?s)struct<(.*)>", kind)
    return column_types(found[1]) if found else {}


def require_new(dataset: str, names: list[str]) -> None:
    """A DeclarationError where two columns would have one name."""
    wrong = sorted({each for each in names if [other.casefold() for other in names].count(each.casefold()) > 1})
    if wrong:
        raise DeclarationError(
            f"{dataset}: {', '.join(wrong)} would be there twice: a column of the row and of its elements have one "
            "name; give prefix, which stands before those of the elements, or another ordinal"
        )
    require_names(dataset, names)
    require_unreserved(dataset, names)
