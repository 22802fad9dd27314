"""`python -m sluice.cli`."""

from sluice.cli import main

main()
