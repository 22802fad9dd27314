"""What the events say of tables: schema, owner, lineage of columns, and results of tests, as facets of OpenLineage."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from openlineage.client import facet_v2 as facets

from sluice.model.lineage import Source, every_column
from sluice.operate.describe import Column, Described
from sluice.operate.openlineage.places import Place

Known = Mapping[str, Described]
PlaceOf = Callable[[str], Place]
Found = dict[str, Any]


def about(table: Described) -> Found:
    """What a table means, and who answers for it."""
    found: Found = {}
    if table.meaning:
        found["documentation"] = facets.documentation_dataset.DocumentationDatasetFacet(table.meaning)
    if table.owner:
        owner = facets.ownership_dataset.Owner(table.owner)
        found["ownership"] = facets.ownership_dataset.OwnershipDatasetFacet([owner])
    return found


def named(project: str, table: str) -> Found:
    """The name by which people know a table, beside the place of its files."""
    symlink = facets.symlinks_dataset.Identifier(project, table, "TABLE")
    return {"symlinks": facets.symlinks_dataset.SymlinksDatasetFacet([symlink])}


def schema(columns: Iterable[Column]) -> facets.schema_dataset.SchemaDatasetFacet:
    """The columns of a table, and the fields of its structs."""
    field = facets.schema_dataset.SchemaDatasetFacetFields
    made: dict[str, Any] = {}
    for column in columns:
        root, _, inner = column.name.partition(".")
        # Only what is declared: a meaning that is guessed from a name tells a reader nothing new.
        one = field(inner or root, column.type, column.comment or None)
        if inner and root in made:
            made[root].fields.append(one)
        else:
            made[root] = one
    return facets.schema_dataset.SchemaDatasetFacet(list(made.values()))


def lineage(
    table: Described, known: Known, place_of: PlaceOf
) -> facets.column_lineage_dataset.ColumnLineageDatasetFacet:
    """The lineage of every column of a table, and of which rows it has."""
    made = facets.column_lineage_dataset
    fields = {
        column.name: made.Fields(
            input_fields(column.made.sources, column.made.unknown or column.made.by, known, place_of)
        )
        for column in table.columns
        if not column.is_field
    }
    rows = input_fields(table.rows, "which rows there are", known, place_of)
    return made.ColumnLineageDatasetFacet(fields, rows)


def input_fields(sources: Iterable[Source], by: str, known: Known, place_of: PlaceOf) -> list[Any]:
    """Each column that is a source once, with all its parts."""
    made = facets.column_lineage_dataset
    found: dict[tuple[str, str], dict[Source, Any]] = {}
    for source in sources:
        for column in roots(source, known):
            kind = "DIRECT" if source.is_direct else "INDIRECT"
            said = source.column if "." in source.column else by
            part = made.Transformation(kind, source.how.replace(" ", "_").upper(), said, masking=False)
            found.setdefault((source.table, column), {})[source] = part
    places = {table: place_of(table) for table, _ in found}
    return [
        made.InputField(places[table].namespace, places[table].name, column, list(parts.values()))
        for (table, column), parts in found.items()
    ]


def roots(source: Source, known: Known) -> list[str]:
    """The columns that a source is in; all of the table's where they are not known one by one."""
    if source.column != every_column:
        return [source.column.split(".", 1)[0]]
    columns = known[source.table].columns if source.table in known else ()
    return [each.name for each in columns if not each.is_field and not each.is_engine]


def assertions(
    tests: Sequence[Mapping[str, Any]],
) -> facets.data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet:
    """The results of a check, as what is asserted of the table that was read."""
    made = facets.data_quality_assertions_dataset
    return made.DataQualityAssertionsDatasetFacet(
        [
            made.Assertion(
                assertion=str(each["type"]),
                success=each["verdict"] == "passed",
                column=column_of(each),
                severity="error" if each["severity"] == "critical" else "warn",
                name=str(each["expectation"]),
                description=each["meaning"] or each["message"],
                actual=each["observed"],
            )
            for each in tests
        ]
    )


def executions(tests: Sequence[Mapping[str, Any]]) -> facets.test_run.TestRunFacet:
    """The same, as what the run of a refresh has tested before it wrote."""
    made = facets.test_run
    return made.TestRunFacet(
        [
            made.TestExecution(
                name=str(each["expectation"]),
                status="pass" if each["verdict"] == "passed" else "fail",
                severity="error" if each["severity"] == "critical" else "warn",
                type=str(each["type"]),
                description=each["meaning"] or each["message"],
                actual=each["observed"],
            )
            for each in tests
        ]
    )


def column_of(test: Mapping[str, Any]) -> str | None:
    """The one column that a test is about; None where it is about the table."""
    found = json.loads(test["arguments"]).get("column")
    return None if found is None else str(found)
