#!/usr/bin/env python3
"""A panel menu that lists the streams, and stops and starts them.

For Argos (GNOME), xbar, SwiftBar or Kargos: what this prints is the menu, made
again every five seconds, as the file's name says. It speaks to
com.tatolab.Runtime1 through busctl, and never starts the runtime.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

RUNTIME = "com.tatolab.Runtime1"
STREAM = f"{RUNTIME}.Stream"
MARKS = {"attached": "▶", "kept": "▶", "stopped": "■", "failed": "⚠"}
# What can be done with a stream of each state.
VERBS = {"attached": ["Stop"], "kept": ["Stop", "Restart"], "stopped": ["Start"], "failed": ["Start"]}


def busctl(*arguments: str) -> str | None:
    """What busctl answers, None where the runtime does not run."""
    done = subprocess.run(["busctl", "--user", "--auto-start=no", *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def streams() -> dict[str, dict[str, Any]] | None:
    """The properties of each stream by its object path, None where the runtime does not run."""
    answer = busctl(
        "--json=short", "call", RUNTIME, "/com/tatolab/Runtime1", "org.freedesktop.DBus.ObjectManager", "GetManagedObjects"
    )
    if answer is None:
        return None
    objects = json.loads(answer)["data"][0]
    return {
        path: {name: value["data"] for name, value in interfaces[STREAM].items()} for path, interfaces in objects.items()
    }


def menu() -> None:
    """Prints the menu."""
    known = streams()
    if known is None:
        print("◇\n---\nThe runtime does not run")
        return
    failed = sum(s["State"] == "failed" for s in known.values())
    print(f"⚠ {failed}" if failed else f"◆ {sum(s['State'] in ('attached', 'kept') for s in known.values())}")
    print("---")
    if not known:
        print("No streams")
    for path, s in sorted(known.items(), key=lambda entry: entry[1]["Name"]):
        print(f"{MARKS.get(s['State'], '?')} {s['Name']}  {s['State']}")
        if s["FailedReason"]:
            print(f"--{s['FailedReason'].splitlines()[0].replace('|', '¦')} | color=red")
        for verb in VERBS.get(s["State"], []):
            print(f"--{verb} | terminal=false refresh=true bash='{sys.argv[0]}' param1={verb} param2={path}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        # Loading may take a minute.
        sys.exit(busctl("--timeout=120", "call", RUNTIME, sys.argv[2], STREAM, sys.argv[1]) is None)
    menu()
