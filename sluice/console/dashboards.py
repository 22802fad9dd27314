"""Saved dashboards: a YAML file each in the project's folder `dashboards`, reviewed like code."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from sluice.errors import UsageError

folder = "dashboards"


class Panel(BaseModel):
    """A chart of a table's measure, or of a query's answer: its numbers by the columns before them.

    `where` are columns of the table with the value that they must have. `unit` replaces the one of the column's name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    table: str | None = None
    measure: str | None = None
    where: Mapping[str, str] = {}
    sql: str | None = None
    unit: str | None = None
    note: str = ""
    wide: bool = False

    @model_validator(mode="after")
    def one_source(self) -> "Panel":
        if (self.sql is None) == (self.table is None):
            raise ValueError("give either a table or sql")
        if self.sql is not None and self.where:
            raise ValueError("where belongs to a table; write it into the sql")
        return self


class Dashboard(BaseModel):
    """A page of charts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    description: str = ""
    charts: tuple[Panel, ...]


def names(project: Path) -> list[str]:
    """The dashboards of a project, by their files' names."""
    return sorted(path.stem for path in (project / folder).glob("*.yaml"))


def read(project: Path, name: str) -> Dashboard:
    """A dashboard; a UsageError says what is wrong with its file, or lists those that there are."""
    import yaml

    if name not in (known := names(project)):
        raise UsageError(f"There is no dashboard {name}; there are {', '.join(known) or f'no files in {folder}'}.")
    path = project / folder / f"{name}.yaml"
    try:
        return Dashboard.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise UsageError(f"{folder}/{path.name} is not YAML: {error}") from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise UsageError(f"{folder}/{path.name} is no dashboard: {said(error)}") from error


def said(error: Exception) -> str:
    """What is wrong, by the place in the file."""
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'the file'}: {each['msg'].removeprefix('Value error, ')}"
        for each in error.errors()
    )
