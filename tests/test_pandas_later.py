"""Commands start without pandas, and who imports it later has PyArrow know its values."""

import subprocess
import sys
from pathlib import Path

import pytest

from sluice import scaffold
from tests.commands import sluice

pytestmark = pytest.mark.process


def said_by(lines: str, here: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", lines, *arguments], cwd=here, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_a_run_imports_no_pandas(tmp_path: Path) -> None:
    project = tmp_path / "project"
    scaffold.write(project)
    sluice("log", "append", "orders", "orders.jsonl", here=project)
    lines = """
import sys
from sluice.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
print("pandas" in sys.modules, "pyspark" in sys.modules)
"""
    assert said_by(lines, project, "run") == "False True"


values = """
import sys
import pyarrow as pa
from sluice.runtime import pandas_later
usual = [*sys.meta_path]
{before}
pandas_later.postpone_for_pyarrow()
import pandas
assert pandas.__spec__.loader.__class__.__name__ == "SourceFileLoader"
print(pa.array(pandas.Series([1.5, None])).null_count, sys.meta_path == usual)
"""


@pytest.mark.parametrize(
    ("before", "nulls"),
    [
        ("usual = [*sys.meta_path]", "1 True"),
        ("usual = [*sys.meta_path]; import pandas", "1 True"),
        (
            "usual = [*sys.meta_path]; pandas_later.executed_and_shown = lambda execute, module: execute(module)",
            "0 True",
        ),
    ],
    ids=["later", "before", "mutant: PyArrow is not shown it"],
)
def test_missing_values_of_pandas_are_nulls_of_pyarrow(tmp_path: Path, before: str, nulls: str) -> None:
    assert said_by(values.format(before=before), tmp_path) == nulls
