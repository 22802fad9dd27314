"""What a command found, as Markdown for people who read it in Airflow."""

from __future__ import annotations

from typing import Any


def difference(replay: dict[str, Any]) -> str:
    """What a replay would change."""
    lines = [
        f"**{replay['name']}**: {', '.join(replay['datasets'])}, because {replay['because']}",
        "",
    ]
    if not replay["compared"]:
        return "\n".join([*lines, "It would compute: " + ", ".join(replay["tables"])])
    lines += ["| dataset | inserted | updated | deleted |", "|---|--:|--:|--:|"]
    lines += [
        f"| {each['dataset']} | {each['inserted']:,} | {each['updated']:,} | {each['deleted']:,} |"
        for each in replay["compared"]
    ]
    measures = [(each["dataset"], one) for each in replay["compared"] for one in each["measures"]]
    if measures:
        lines += ["", "| dataset | column | rows that differ | mean before | after |", "|---|---|--:|--:|--:|"]
        lines += [
            f"| {dataset} | {one['column']} | {one['rows']:,} | {one['mean_before']} | {one['mean_after']} |"
            for dataset, one in measures
        ]
    return "\n".join(lines)
