"""Builds the jar beside its source."""

import sys

from infra.servers.readonly import jar, source
from sluice.errors import SluiceError
from sluice.runtime import logstore
from sluice.runtime.logstore.__main__ import class_path

if __name__ == "__main__":
    try:
        logstore.build(jar, class_path(), source)
    except SluiceError as problem:
        sys.exit(f"Error: {problem}")
