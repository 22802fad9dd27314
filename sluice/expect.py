"""The functions that declare a suite: `suite`, `expect` and `built_in`."""

from sluice.model.expectations import Expectation, Severity, Suite, built_in, expect, suite

__all__ = ["Expectation", "Severity", "Suite", "built_in", "expect", "suite"]
