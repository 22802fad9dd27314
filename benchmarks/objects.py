"""What tables on S3 cost against tables in a folder: the same records, the same driver, turn by turn.

    python -m benchmarks.objects --records 500000

versitygw runs on loopback for it (`python -m infra.servers install s3`), so a request costs its work and no distance.
"""

import os
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.landing import sales
from infra.servers import S3, running
from sluice import bronze, gold, silver
from sluice.cli.printing import print_table
from sluice.engine.catalogue import ordered
from sluice.engine.runner import Runner
from sluice.log import Log
from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings
from sluice.storage import s3
from sluice.storage.bucket import require
from sluice.storage.delta import Lake

turns = 3
late_records = 10
sold = silver.events(
    "sales",
    source=bronze.topic("sales"),
    schema="sale_id bigint, product string, pieces int, price_euro double",
    keys=["sale_id"],
)
revenue = gold.aggregate(
    "revenue", source=sold, group_by=["product"], measures={"revenue_euro": "sum(pieces * price_euro)"}
)


def main(records: Annotated[int, typer.Option(help="How many are landed and built at first.")] = 500_000) -> None:
    """Builds bronze, silver and gold, then has ten records more follow; prints the median seconds and their ratios."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder, running(S3(Path(folder, "s3"))) as server:
        os.environ |= server.server.settings()
        places = {"folder": f"{folder}/lake", "S3": os.environ["SLUICE_LAKE"]}
        require(s3.S3.of(places["S3"]), make=True)
        took: dict[str, dict[str, list[float]]] = {name: {"first build": [], "ten records more": []} for name in places}
        with spark_session(Settings(lake=places["S3"])) as spark:
            # The first turn warms the driver up.
            for turn in range(turns + 1):
                for name, root in places.items():
                    log = Log(Path(folder, f"log-{turn}-{name}"))
                    runner = Runner(
                        spark, Lake(f"{root}/{turn}"), log, ordered([revenue]), batch_records_max=10 * records
                    )
                    for what, begin, count in (
                        ("first build", 0, records),
                        ("ten records more", records, late_records),
                    ):
                        log.append("sales", islice(sales(begin + count), begin, None))
                        start = time.perf_counter()
                        runner.until_caught_up()
                        if turn:
                            took[name][what].append(time.perf_counter() - start)
    rows = [
        [what, f"{median(took['folder'][what]):.1f}", f"{median(took['S3'][what]):.1f}", f"{ratio(took, what):.2f}"]
        for what in took["S3"]
    ]
    print_table(["what", "folder: s", "S3: s", "S3 ÷ folder"], rows)


def ratio(took: dict[str, dict[str, list[float]]], what: str) -> float:
    return median(took["S3"][what]) / median(took["folder"][what])


if __name__ == "__main__":
    typer.run(main)
