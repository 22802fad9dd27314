"""Tables that are declared as a SELECT, each in a `.sql` file of the project."""

from sluice.sql.files import table

__all__ = ["table"]
