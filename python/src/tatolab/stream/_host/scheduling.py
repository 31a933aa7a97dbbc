"""What `@node(scheduling=…)` asks of the kernel, for the thread that runs the callbacks."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._node import Scheduling

# The lowest: above everything that is not realtime, below what the system runs so.
REALTIME_PRIORITY = 1
# What a desktop gives to its sound server.
HIGH_NICE = -11


def schedule(scheduling: Scheduling | None) -> str:
    """Set how the calling thread is scheduled; returns what is to be logged if that is not permitted.

    Threads and processes that the node starts do not inherit it.
    """
    refusals: list[str] = []
    if scheduling == "realtime":
        try:
            # Among its equals it takes turns, so that two busy nodes do not starve each other.
            policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
            os.sched_setscheduler(0, policy, os.sched_param(REALTIME_PRIORITY))
            return ""
        except OSError as error:
            refusals.append(f"realtime: {error.strerror} (RLIMIT_RTPRIO is {_limit(resource.RLIMIT_RTPRIO)})")
    if scheduling in ("realtime", "high"):
        try:
            os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, 0, HIGH_NICE)
        except OSError as error:
            refusals.append(f"high: {error.strerror} (RLIMIT_NICE is {_limit(resource.RLIMIT_NICE)})")
    if not refusals:
        return ""
    used = "high" if len(refusals) == 1 and scheduling == "realtime" else "normal"
    return (
        f'scheduling "{scheduling}" is not permitted: {"; ".join(refusals)}. The node goes on as "{used}"; '
        "LimitRTPRIO=1 and LimitNICE=-11 of user@.service, or rtprio and nice in /etc/security/limits.d, permit it"
    )


def _limit(which: int) -> int:
    return resource.getrlimit(which)[0]
