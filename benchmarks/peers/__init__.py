"""Sluice beside what people would use instead, on the workload of `benchmarks.proportion`.

Each peer is one file with one function: `driver(log, lake)` is a context, and gives a function that brings four tables
below `lake` up to what the log has. All read the same segments of the same log. `shared.py` has what they share,
`python -m benchmarks.peers` measures and proves the tables equal, and `python -m benchmarks.peers.report` shows it.
"""
