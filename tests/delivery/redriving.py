"""Redrives everything of pipeline p in chunks of ten: `python -m tests.delivery.redriving NAME`."""

from __future__ import annotations

import sys

from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.resend import redrive
from tests.delivery.shelf import register

if __name__ == "__main__":
    register()
    redrive.CHUNK = 10
    with opened("p", sys.argv[1]) as context:
        outcomes = redrive.redrive(context, Selection(), sys.argv[1], wait=120.0)
    print(sum(o.redriven for o in outcomes), sum(o.gone for o in outcomes))
