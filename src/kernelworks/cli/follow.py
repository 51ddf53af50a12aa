"""Chooses how a run is followed: live on a terminal, lines elsewhere, JSON where it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from kernelworks.app.events import Listener, RunEvent, event_json
from kernelworks.cli.plain import PlainListener


class EventStream:
    """One JSON object per event on stdout."""

    def on_event(self, event: RunEvent) -> None:
        """Print the event."""
        print(event_json(event), flush=True)


@contextmanager
def follow(*, events: bool, verbose: bool) -> Generator[Listener]:
    """The listener of one run. Progress goes to stderr, so that stdout carries the answer alone."""
    if events:
        yield EventStream()
    elif verbose or not sys.stderr.isatty():
        yield PlainListener(sys.stderr, verbose=verbose)
    else:
        from rich.console import Console

        from kernelworks.cli.live import LiveView

        with LiveView(Console(stderr=True)) as view:
            yield view
