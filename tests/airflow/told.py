"""A notifier that tests can read: it adds a line to a file."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk.bases.notifier import BaseNotifier


class ToFile(BaseNotifier):
    """Tells a file."""

    template_fields = ("text",)

    def __init__(self, path: str, text: str) -> None:
        super().__init__()
        self.path = path
        self.text = text

    def notify(self, context) -> None:
        with Path(self.path).open("a") as file:
            file.write(f"{self.text}\n")
