# SPDX-License-Identifier: Apache-2.0
"""Merges what the ranks write, line by line, each with its rank in front.

A progress bar redraws one line by carriage returns. On a terminal the lowest rank's bar
stays live on the last line; elsewhere a redrawn line is shown at most every few
seconds, and the last one always. Bytes are passed on as they are. Used by one thread.
"""

from __future__ import annotations

import os
import time
from collections import deque

_BAR_SECONDS = 10.0
_ERASE_LINE = b"\r\x1b[K"
_KEPT_LINES = 30
_TRACEBACK = b"Traceback (most recent call last)"


class Screen:
    """One of the launcher's own two streams."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._live = os.isatty(descriptor)
        self._bar = b""
        self._bar_rank: int | None = None

    @property
    def live(self) -> bool:
        """Whether the stream is a terminal."""
        return self._live

    def line(self, text: bytes) -> None:
        """Writes one line, above the live bar if there is one."""
        if self._bar:
            self._write(_ERASE_LINE + text + b"\n" + self._bar)
        else:
            self._write(text + b"\n")

    def bar(self, rank: int, text: bytes) -> None:
        """Redraws the live bar. The lowest rank that has one owns it."""
        if self._bar_rank is None or rank <= self._bar_rank:
            self._bar_rank = rank
            self._bar = text
            self._write(_ERASE_LINE + text)

    def drop_bar(self, rank: int) -> None:
        """Forgets the live bar of `rank`, whose last state comes as a line."""
        if self._bar_rank == rank:
            self._write(_ERASE_LINE)
            self._bar_rank, self._bar = None, b""

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                # Nobody reads any more; the job goes on and its exit code counts.
                return


class RankStream:
    """One stream of one rank, cut into lines."""

    def __init__(self, rank: int, screen: Screen):
        self.last_lines: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self.last_traceback: float | None = None
        self._rank = rank
        self._prefix = f"[{rank}] ".encode()
        self._screen = screen
        self._partial = b""
        self._drawing = b""
        self._shown = time.monotonic()

    def feed(self, data: bytes) -> None:
        """Takes what the rank wrote, in any pieces."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._finish(line)
        if b"\r" in self._partial:
            self._redraw()

    def close(self) -> None:
        """Shows what is left without an end of line."""
        if self._partial or self._drawing:
            self._finish(self._partial)
            self._partial = b""

    def _finish(self, line: bytes) -> None:
        # Of a line that was redrawn the last drawing counts; "\r\n" only ends a line.
        line = line.rstrip(b"\r").rpartition(b"\r")[2] or self._drawing
        if self._drawing:
            self._drawing = b""
            self._screen.drop_bar(self._rank)
        if line.startswith(_TRACEBACK):
            self.last_traceback = time.monotonic()
        self.last_lines.append(line)
        self._screen.line(self._prefix + line)

    def _redraw(self) -> None:
        # Bars write "\r" before each drawing or after it.
        before, _, after = self._partial.rpartition(b"\r")
        self._partial = b"\r" + after
        drawing = after or before.rpartition(b"\r")[2]
        if not drawing.strip():
            return
        self._drawing = drawing
        if self._screen.live:
            self._screen.bar(self._rank, self._prefix + drawing)
        elif time.monotonic() - self._shown >= _BAR_SECONDS:
            self._shown = time.monotonic()
            self._screen.line(self._prefix + drawing)
