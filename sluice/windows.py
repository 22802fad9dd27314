"""The windows that an aggregate can group by."""

from sluice.shapes.windows import Window, calendar_window, session_window, sliding_window, window

__all__ = ["Window", "calendar_window", "session_window", "sliding_window", "window"]
