"""Writes each start and stop of motion to a JSON Lines file."""

import json
from dataclasses import dataclass
from datetime import datetime, timezone

from tatolab.stream import RuntimeContextFullAccess, RuntimeContextLimitedAccess, node


@dataclass
class MotionEventLogConfig:
    # The file to append to, relative to this project's folder.
    path: str = "motion-events.jsonl"


@node
class MotionEventLog:
    """Appends a line to a JSON Lines file each time motion starts or stops."""

    @node.input(delivery_profile="ordered")
    def motion(self) -> dict: ...

    def __init__(self, config: MotionEventLogConfig) -> None:
        self.path = config.path
        self.moving = False

    def setup(self, ctx: RuntimeContextFullAccess) -> None:
        self.events_file = open(self.path, "a", encoding="utf-8")

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        report = ctx.inputs.read("motion")
        if report is None or report["moving"] == self.moving:
            return
        self.moving = report["moving"]
        event = {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "event": "motion started" if self.moving else "motion stopped",
            "changed": report["changed"],
        }
        self.events_file.write(json.dumps(event) + "\n")
        self.events_file.flush()

    def teardown(self, ctx: RuntimeContextFullAccess) -> None:
        self.events_file.close()
