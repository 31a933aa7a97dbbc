"""Holds a thing that one process at a time may have, as a camera is."""

import fcntl
import subprocess

from tatolab.stream import RuntimeContextFullAccess, RuntimeContextLimitedAccess, node


@node(execution="continuous", interval_ms=50)
class Holder:
    """Locks the file `device`, and leaves it to a child that outlives the node."""

    @node.output()
    def held(self) -> dict: ...

    def setup(self, ctx: RuntimeContextFullAccess) -> None:
        self.device = open("device", "w")
        fcntl.flock(self.device, fcntl.LOCK_EX | fcntl.LOCK_NB)
        subprocess.Popen(["sleep", "1000"], pass_fds=[self.device.fileno()], start_new_session=True)

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        ctx.outputs.write("held", {"held": True})
