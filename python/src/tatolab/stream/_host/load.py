"""How a node process finds its class: in the code its stream was compiled with."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from .._lend.modules import SNAPSHOT, merge_path, use_snapshot

if TYPE_CHECKING:
    from .._node import NodeDeclaration


def enter(snapshot: str, project: str) -> None:
    """Import the project's modules from `snapshot` ("" where there is none) from now on."""
    sys.argv = [""]
    if snapshot:
        os.environ[SNAPSHOT] = snapshot
        use_snapshot(snapshot)
    # Last: what the snapshot does not hold, as the project is too large or the
    # file is new, is found on the disk, and nothing there shadows what was kept.
    sys.path.append(project)
    merge_path()


def node_class(type: str) -> NodeDeclaration:
    """Import the node class that `type`, module:Class, names."""
    module, _, name = type.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    from .._node import declaration_of

    declaration = declaration_of(found)
    if declaration is None:
        raise TypeError(f"{type} is no node class: decorate it with @node")
    return declaration
