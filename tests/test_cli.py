"""The command line: wrong use is one clear sentence and exit code 2, never a traceback."""

import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest
from typer import BadParameter

from sluice import cli
from sluice.cli.options import time_of
from sluice.cli.printing import print_table
from sluice.log import Log
from sluice.runtime.session import own_interrupts
from tests.commands import sluice
from tests.forked import sluice_forked


def refused(*arguments: str, here: Path, environment: dict[str, str] | None = None) -> str:
    """The message of a command that is wrong use."""
    done = sluice(*arguments, here=here, environment=environment)
    assert done.returncode == 2, done.stderr
    return " ".join(done.stderr.split())


def test_its_version_is_that_of_the_package(tmp_path: Path) -> None:
    assert sluice("--version", here=tmp_path).stdout.strip() == version("sluice-lakehouse")


def test_a_command_that_does_not_exist_is_named_with_its_neighbour(tmp_path: Path) -> None:
    message = refused("stauts", here=tmp_path)
    assert "No such command 'stauts'" in message
    assert "'status'" in message


def test_one_of_two_keys_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").touch()
    assert "Give key or key_field" in refused(
        *["log", "append", "t", "-", "--key", "a", "--key-field", "k"], here=tmp_path
    )


def test_an_argument_that_is_no_text_is_refused(tmp_path: Path) -> None:
    for arguments in ((b"query", b"select '\xff'"), (b"log", b"append", b"t", b"-", b"--key", b"\xff")):
        # As Python has them that a shell gave.
        assert "is not UTF-8." in refused(*map(os.fsdecode, arguments), here=tmp_path)


def test_no_row_is_folded_where_there_is_no_screen(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a", "b"], [["x" * 300, "y" * 300]])
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["a", "b"]
    assert row.split() == ["x" * 300, "y" * 300]


@pytest.mark.process
def test_a_receiver_imports_nothing_of_tables() -> None:
    lines = """
import sys
from sluice.cli import main
sys.argv = ["sluice", "listen", "http", "--help"]
try:
    main()
except SystemExit:
    print(*sorted({"pyspark", "pyarrow", "duckdb", "deltalake", "sqlglot"} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""
    assert "--webhook" in done.stdout


def test_garbage_is_collected_after_an_import_and_a_command(tmp_path: Path) -> None:
    """It was off in each process that had imported the commands, so Spark kept every plan of it."""
    assert gc.isenabled()
    refused("status", here=tmp_path)
    assert gc.isenabled()


def test_a_folder_that_is_no_project_is_named(tmp_path: Path) -> None:
    assert "has no folder 'pipelines'" in refused("status", here=tmp_path)


def test_a_setting_that_does_not_exist_is_named_with_its_neighbour(tmp_path: Path) -> None:
    message = refused("status", here=tmp_path, environment={"SLUICE_LAEK": "x"})
    assert "SLUICE_LAEK is not a setting; did you mean SLUICE_LAKE?" in message


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("SLUICE_POLL_SECONDS", "soon", "SLUICE_POLL_SECONDS='soon' cannot be used"),
        ("SLUICE_DRIVER_MEMORY", "much", "SLUICE_DRIVER_MEMORY='much' cannot be used"),
        ("SLUICE_LAKE", "s3://bucket", "must be a local path, or s3a://BUCKET/PREFIX"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, name: str, value: str, says: str) -> None:
    assert says in refused("status", here=tmp_path, environment={name: value})


def test_a_time_may_have_an_offset_and_else_is_utc() -> None:
    for said in ("2026-03-28T10:00", "2026-03-28 10:00:00", "2026-03-28T10:00:00Z", "2026-03-28T12:00:00.000+02:00"):
        found = time_of(said)
        assert (found, found.utcoffset()) == (datetime(2026, 3, 28, 10, tzinfo=UTC), timedelta(0))
    assert time_of("2026-03-28") == datetime(2026, 3, 28, tzinfo=UTC)
    for said in ("soon", "", "0001-01-01T00:00:00+02:00"):
        with pytest.raises(BadParameter, match="is no time such as 2026-03-28"):
            time_of(said)


def test_a_pipeline_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").write_text("import nothing_like_this")
    said = refused("status", here=tmp_path)
    assert "pipelines/__init__.py, line 1, cannot be imported: ModuleNotFoundError" in said
    # A line that cannot be read is named where it is, not where its module is imported.
    (tmp_path / "pipelines" / "__init__.py").write_text("import pipelines.later")
    (tmp_path / "pipelines" / "later.py").write_text("\n\nx = (")
    said = refused("status", here=tmp_path)
    assert "pipelines/later.py, line 3, cannot be imported: SyntaxError: '(' was never closed" in said


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("silver.events('e', shema='id string')", "'shema'; did you mean schema?"),
        ("gold.aggregate('a', sauce=None)", "'sauce'; did you mean source?"),
        ("windows.window('at', '1 hour', evry='2 hours')", "'evry'; did you mean every?"),
        ("silver.events('e', xyz=1)", "argument 'xyz'"),
        ("dict(**1)", "must be a mapping, not int"),
    ],
)
def test_a_misspelt_option_is_named_with_its_neighbour(tmp_path: Path, declared: str, said: str) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").write_text(f"from sluice import gold, silver, windows\n{declared}")
    message = refused("status", here=tmp_path)
    assert "line 2, cannot be imported: TypeError" in message
    assert message.strip().endswith(said)


def test_an_interrupt_ends_a_command_as_it_ends_python(tmp_path: Path) -> None:
    """PySpark leaves it alone: its own way to take one ends in a traceback."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        refused("status", here=tmp_path)
        assert signal.getsignal(signal.SIGINT) is cli.interrupt
        with own_interrupts():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is cli.interrupt
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, usual)


def test_a_declaration_that_cannot_work_says_in_which_line_it_is(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").touch()
    (tmp_path / "pipelines" / "shop.py").write_text("from sluice import bronze\n\norders = bronze.topic('Or ders')\n")
    assert "Error: pipelines/shop.py, line 3: " in refused("status", here=tmp_path)


def test_modules_in_folders_without_init_files_count(tmp_path: Path) -> None:
    for folder in ("pipelines/sales", "pipelines/.ipynb_checkpoints", "expectations/silver"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "pipelines" / "sales" / "shop.py").write_text(
        "from sluice import bronze, silver\n"
        "orders = silver.events('orders', source=bronze.topic('orders'), schema='id string', keys=['id'])\n"
    )
    (tmp_path / "pipelines" / ".ipynb_checkpoints" / "shop-checkpoint.py").write_text("x = (")
    (tmp_path / "expectations" / "silver" / "orders.py").write_text(
        "from sluice.expect import expect, suite\n"
        "rules = suite('silver.orders', expect('column_values_to_not_be_null', column='it', severity='warn'))\n"
    )
    (tmp_path / "pipelines" / "__init__.py").touch()
    (tmp_path / "expectations" / "__init__.py").touch()
    assert "there is no column it" in refused("status", here=tmp_path)


def test_another_package_of_the_name_is_not_taken_for_the_project(tmp_path: Path) -> None:
    # Of the demo's project, which the tests can import, and this folder, which has no `__init__.py`.
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines/shop.py").touch()
    said = refused("status", here=tmp_path)
    assert f"for pipelines, and not {tmp_path / 'pipelines'}. Add {tmp_path / 'pipelines/__init__.py'}" in said


@pytest.mark.process
def test_tables_of_another_project_that_python_knows_are_not_taken(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name / "pipelines/gold").mkdir(parents=True)
        (tmp_path / name / "pipelines/shop.py").write_text(
            "from sluice import bronze, silver\n"
            "orders = silver.events('orders', source=bronze.topic('orders'), schema='id string', keys=['id'])\n"
        )
        (tmp_path / name / f"pipelines/gold/of_{name}.sql").write_text(
            "SELECT id, count(*) AS n FROM silver.orders GROUP BY id"
        )
    code = "import sys, sluice; print(*(each.name for each in sluice.Project(sys.argv[1]).catalogue()))"
    # Neither has an `__init__.py`, so each is a part of one package for Python.
    command = [sys.executable, "-c", code, str(tmp_path / "other")]
    found = subprocess.run(command, cwd=tmp_path / "one", capture_output=True, text=True, check=True)
    assert [each for each in found.stdout.split() if each.startswith("gold")] == ["gold.of_other"]


def test_a_declaration_that_cannot_work_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").write_text(
        "from sluice import bronze, silver\n"
        "silver.events('e', source=bronze.topic('t'), schema='a string', keys=['b'])\n"
    )
    assert "silver.e: keys names b, which the schema lacks; it has a" in refused("status", here=tmp_path)


def fake_java(folder: Path, version: str) -> str:
    """A `java` that says another version."""
    folder.mkdir()
    (folder / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    (folder / "java").chmod(0o755)
    return str(folder)


@pytest.mark.process
def test_java_that_is_missing_or_too_old_is_reported_before_spark_starts(tmp_path: Path) -> None:
    project = tmp_path / "mine"
    assert sluice("init", str(project), here=tmp_path).returncode == 0
    (project / ".sluice" / "log").mkdir(parents=True)
    empty = tmp_path / "empty"
    empty.mkdir()
    nowhere = refused("run", here=project, environment={"PATH": str(empty), "JAVA_HOME": ""})
    assert "there is no java on the PATH" in nowhere
    assert "Install Java 17 or 21" in nowhere
    old = refused("run", here=project, environment={"PATH": fake_java(tmp_path / "old", "1.8.0_402"), "JAVA_HOME": ""})
    assert "is Java 8, too old" in old


@pytest.mark.process
def test_a_lake_that_another_run_holds_is_refused(tmp_path: Path) -> None:
    from sluice.storage.lock import lake_lock

    project = tmp_path / "mine"
    sluice("init", str(project), here=tmp_path)
    (project / ".sluice" / "log").mkdir(parents=True)
    with lake_lock(str(project / ".sluice" / "lake")):
        done = sluice_forked("run", here=project)
    assert done.returncode == 1
    assert f"Another sluice (process {os.getpid()}) is writing the lake" in " ".join(done.stderr.split())


def test_a_log_is_written_and_read_by_commands(tmp_path: Path) -> None:
    assert "is not a Sluice project" in refused("log", "append", "t", "-", here=tmp_path)
    assert "is not a Sluice project" in refused("query", "SELECT 1", here=tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "pipelines").mkdir()
    # Half of a pair is no text, so that line has no key; it is a record all the same.
    half = b'{"id":"\\ud800"}'
    lines = b'{"id":"a"}\n\xff\n{"id":"b"}\n' + half + b"\n"
    assert sluice("log", "append", "t", "-", "--key-field", "id", here=tmp_path, stdin=lines).returncode == 0
    values = [record.value for p in range(4) for record in Log(tmp_path / ".sluice" / "log").read("t", p)]
    assert sorted(values, key=repr) == sorted([b"\xff", b'{"id":"a"}', b'{"id":"b"}', half], key=repr)
    tail = sluice("log", "tail", "t", "-n", "2", here=tmp_path).stdout.splitlines()
    assert [json.loads(line)["headers"] for line in tail] == [{}, {}]
    topics = json.loads(sluice("log", "topics", "--json", here=tmp_path).stdout)
    assert sum(each["end_offset"] for each in topics) == 4


def test_a_topic_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = sluice("log", "tail", "nothing", here=tmp_path)
    assert done.returncode == 1
    assert "has no topic nothing" in " ".join(done.stderr.split())


@pytest.mark.usefixtures("spark_for_commands")
def test_a_project_of_ones_own_runs(tmp_path: Path) -> None:
    """What the README of `sluice init` says, from another folder by --project."""
    project = tmp_path / "mine"
    sluice("init", str(project), here=tmp_path)
    assert "is not empty" in refused("init", str(project), here=tmp_path)
    named = ("--project", str(project))
    for topic, key in (("products", "product_id"), ("orders", "order_id")):
        file = str(project / f"{topic}.jsonl")
        assert sluice("log", "append", topic, file, "--key-field", key, *named, here=tmp_path).returncode == 0
    examined = sluice("doctor", "--json", *named, here=tmp_path)
    assert {each["check"]: each["ok"] for each in json.loads(examined.stdout)} == dict.fromkeys(
        ("java", "jars", "log", "lake"), True
    )
    done = sluice("run", "--json", *named, here=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"gold.revenue_daily", "bronze.orders"} <= {event["name"] for event in json.loads(done.stdout)}

    sql = "SELECT product, sum(revenue_euro)::double AS revenue FROM gold.revenue_daily GROUP BY 1 ORDER BY 1"
    assert json.loads(sluice("query", sql, "--json", *named, here=tmp_path).stdout) == [
        {"product": "Cup", "revenue": 36.0},
        {"product": "Tea", "revenue": 2 * 4.5 + 4.5 + 5.0},
    ]
    orders, *others = json.loads(sluice("audit", "--json", *named, here=tmp_path).stdout)
    assert {"silver.products", "silver.priced_orders"} <= {
        each["dataset"] for each in others if each.get("broken") == 0
    }
    assert (orders["landed"], orders["accepted"], orders["duplicate"], orders["quarantined"]) == (6, 4, 1, 1)
    assert orders["balanced"] is True
    checked = sluice("check", *named, here=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert "usable_records" in checked.stdout
    assert "malformed_json 1" in checked.stdout
    report = project / ".sluice" / "lake" / "_reports" / "index.html"
    assert f"Report: {report}" in "".join(checked.stderr.splitlines())
    report.unlink()
    assert json.loads(sluice("report", "--json", *named, here=tmp_path).stdout) == {"index": str(report)}
    assert report.exists()
    part = ("run", "gold.revenue_daily", "--since", "2026-03-01", "--until", "2026-03-03")
    assert json.loads(sluice(*part, "--json", *named, here=tmp_path).stdout) == {"gold.revenue_daily": 0}
    assert "without --continuous" in refused(*part, "--continuous", *named, here=tmp_path)
    maintained = json.loads(sluice("maintain", "gold.revenue_daily", "--json", *named, here=tmp_path).stdout)
    assert list(maintained["tables"]) == ["gold.revenue_daily"]
    assert "There is no table gold.nothing" in refused("maintain", "gold.nothing", *named, here=tmp_path)
    nodes = {each["name"]: each for each in json.loads(sluice("catalogue", "--json", *named, here=tmp_path).stdout)}
    assert nodes["silver.priced_orders"]["sources"] == ["silver.orders", "silver.products"]
    traced = json.loads(sluice("lineage", "gold.revenue_daily.revenue_euro", "--json", *named, here=tmp_path).stdout)
    assert [each["source_column"] for each in traced["upstream"] if each["source_table"] == "bronze.orders"] == [
        "value"
    ]
    assert "← silver.priced_orders.quantity (aggregation)" in (
        sluice("lineage", "gold.revenue_daily.revenue_euro", *named, here=tmp_path).stdout
    )
    assert "gold.revenue_daily.orders" in sluice("lineage", *named, here=tmp_path).stdout
    assert "decimal(31,2) in €\n" in sluice("lineage", "gold.revenue_daily.revenue_euro", *named, here=tmp_path).stdout
    whole = sluice("lineage", "gold.revenue_daily", *named, here=tmp_path).stdout.splitlines()
    assert any("gold.revenue_daily.orders " in line and "count(*)" in line for line in whole)
    assert any("silver.priced_orders.quantity" in line for line in whole)
    assert "There is no table gold.nothing" in refused("lineage", "gold.nothing", *named, here=tmp_path)
    index = sluice("docs", "--out", "pages", *named, here=tmp_path).stdout.strip()
    assert index == (tmp_path / "pages" / "index.html").as_uri()
    assert "decimal" in (tmp_path / "pages" / "gold.revenue_daily.html").read_text()
    dry = ("replay", "start", "silver.orders", "--because", "to see", "--dry-run")
    assert "silver.orders, silver.priced_orders, gold.revenue_daily" in sluice(*dry, *named, here=tmp_path).stdout
    shutil.rmtree(project / ".sluice" / "lake" / "silver" / "_fates")
    unbalanced = sluice("audit", "--json", *named, here=tmp_path)
    assert unbalanced.returncode == 1
    assert json.loads(unbalanced.stdout)[0]["missing"] == 2
    lost = sluice("check", "silver.orders", "--no-report", "--json", *named, here=tmp_path)
    assert lost.returncode == 1
    assert {each["expectation"]: each["unexpected_rows"] for each in json.loads(lost.stdout)}["conservation"] == 2
    states = json.loads(sluice("status", "--json", *named, here=tmp_path).stdout)
    assert {state["dataset"]: state["lag"] for state in states}["bronze.orders"] == 0
    assert "cannot be answered" in refused("query", "SELECT * FROM gold.nothing", *named, here=tmp_path)


@pytest.mark.usefixtures("spark_for_commands")
def test_a_held_record_is_shown_and_released(tmp_path: Path) -> None:
    sluice("init", "mine", here=tmp_path)
    project = tmp_path / "mine"
    order = {"order_id": "x", "placed_at": "2999-01-01T00:00:00Z", "product_id": "p", "quantity": 1}
    values = "\n".join([json.dumps(order), "{", ""]).encode()
    sluice("log", "append", "orders", "-", "--key", "x", here=project, stdin=values)
    assert sluice("run", "silver.orders", here=project).returncode == 0
    held = json.loads(sluice("quarantine", "list", "--json", here=project).stdout)
    assert {each["reason"]: each["can_be_released"] for each in held} == {
        "malformed_json": False,
        "placed_at_in_the_future": True,
    }
    shown = sluice("quarantine", "show", "silver.orders", "--reason", "placed_at_in_the_future", here=project)
    assert "There are more" not in shown.stderr
    assert '"order_id": "x"' in shown.stdout
    show = ("quarantine", "show", "silver.orders", "--reason")
    none = sluice(*show, "wrong_type", here=project)
    assert (none.returncode, none.stdout) == (0, "")
    assert "silver.orders has no quarantined records for wrong_type." in none.stderr
    known = refused(*show, "nosuch", here=project)
    assert "silver.orders has no rule nosuch; its rules are " in known
    assert {"malformed_json", "null_order_id", "placed_at_in_the_future"} <= set(re.findall(r"\w+", known))

    release = ("quarantine", "release", "silver.orders", "--because", "a test")
    assert "Say what to release" in refused(*release, here=project)
    assert "silver.orders has no rule lat; its rules are " in refused(*release, "--reason", "lat", here=project)
    assert "cannot be used as they are" in refused(*release, "--reason", "malformed_json", here=project)
    assert "has no quarantined record orders/9/9" in refused(*release, "--record", "orders/9/9", here=project)
    assert "gold.nothing consumes no records" in refused("quarantine", "show", "gold.nothing", here=project)
    done = sluice(*release, "--reason", "placed_at_in_the_future", here=project)
    assert "Released 1 of silver.orders" in done.stdout
    assert sluice("run", "silver.orders", here=project).returncode == 0
    found = json.loads(sluice("query", "SELECT order_id FROM silver.orders", "--json", here=project).stdout)
    assert found == [{"order_id": "x"}]

    explained = json.loads(sluice("explain", "silver.orders", "order_id=x", "--json", here=project).stdout)
    assert [(each["cause"], each["origins"][0]["by"], each["row"]["quantity"]) for each in explained] == [
        ("changes", "records", 1)
    ]
    assert explained[0]["origins"][0]["records"][0].startswith("orders/")
    assert "say which row by order_id" in refused("explain", "silver.orders", "x", here=project)
    absent = "silver.orders has no row order_id=y, in any version that is kept"
    assert absent in refused("explain", "silver.orders", "order_id=y", here=project)
    then = ("query", "SELECT count(*) AS orders FROM silver.orders", "--as-known-at")
    assert json.loads(sluice(*then, "2999-01-01", "--json", here=project).stdout) == [{"orders": 1}]
    assert "was not there yet" in refused(*then, "2000-01-01", here=project)


@pytest.mark.process
def test_a_log_that_is_not_there_is_reported(tmp_path: Path) -> None:
    project = tmp_path / "mine"
    sluice("init", str(project), here=tmp_path)
    done = sluice("run", here=project)
    assert done.returncode == 1
    assert "There is no log at" in " ".join(done.stderr.split())
    examined = sluice("doctor", here=project)
    assert examined.returncode == 1
    assert "There is no log at" in " ".join(examined.stdout.split())


def test_an_unknown_dataset_is_named(tmp_path: Path) -> None:
    project = tmp_path / "mine"
    sluice("init", str(project), here=tmp_path)
    assert "There is no dataset gold.nothing; there are bronze" in refused("run", "gold.nothing", here=project)
    for command in (("run", "gold.revenue_dayly"), ("explain", "gold.revenue_dayly", "product=Tea")):
        assert "no dataset gold.revenue_dayly; did you mean gold.revenue_daily?" in refused(*command, here=project)


def test_a_field_for_keys_that_no_record_has_is_a_warning(tmp_path: Path) -> None:
    sluice("init", "mine", here=tmp_path)
    append = ("log", "append", "orders", "-", "--key-field")
    none = sluice(*append, "oder_id", here=tmp_path / "mine", stdin=b'{"order_id": "1"}\n{\n').stderr
    assert "None of the records of orders has a field oder_id: they have no key" in " ".join(none.split())
    assert sluice(*append, "order_id", here=tmp_path / "mine", stdin=b'{"order_id": "1"}\n{\n').stderr.strip() == ""
    assert sluice(*append, "order_id", here=tmp_path / "mine", stdin=b"").stderr.strip() == ""


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("SLUICE_LOG", "kafka:/x", "'kafka:/x' is not an address: write kafka:// at its beginning"),
        ("SLUICE_LAKE", "s3:/bucket", "'s3:/bucket' is not an address: write s3:// at its beginning"),
        ("SLUICE_LOG", "ftp://x", "cannot be used: must be a local path, or kafka://"),
        ("SLUICE_DRIVER_MEMORY", "2", "write for example 512m or 2g."),
        ("SLUICE_SPARK", "locl", r"write for example local[2], spark://HOST:7077 or sc://HOST:15002."),
    ],
)
def test_a_setting_that_cannot_be_is_answered_with_one_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    assert says in refused("log", "topics", here=tmp_path)


def test_appending_to_a_topic_that_nothing_reads_says_so_once(tmp_path: Path) -> None:
    sluice("init", "mine", here=tmp_path)
    project = tmp_path / "mine"

    def said(topic: str) -> str:
        return "".join(sluice("log", "append", topic, "-", here=project, stdin=b"{}\n").stderr.splitlines())

    assert said("ordres") == "Warning: The topic ordres is new, and no dataset reads it: did you mean orders?"
    assert "they read orders, products." in said("elsewhere")
    assert (said("ordres"), said("orders")) == ("", "")
    (project / "rows.jsonl").write_bytes(b"{}\n")
    imported = [
        sluice("log", "import", name, "rows.jsonl", here=project).stderr for name in ("odres", "odres", "orders")
    ]
    assert ["did you mean orders?" in each for each in imported] == [True, False, False]
    assert "that no dataset is made from: elsewhere, odres, ordres.\n" in sluice("status", here=project).stdout
    (project / "pipelines" / "broken.py").write_text("from sluice import nothing")
    assert said("new") == ""
