"""Where modules come from: the lent package, and the code of a project.

Loaded by path before anything of `tatolab.stream` can be imported, so it
imports only what every interpreter has at hand.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, ModuleType

PACKAGE = "tatolab"
LENT = "tatolab.stream"

# Names the snapshot in the environment of a node process, for whatever Python
# it starts through multiprocessing. Only the bootstrap reads it.
SNAPSHOT = "TATOLAB_SNAPSHOT"


class LentFinder:
    """Finds `tatolab.stream` in the lent folder, and lets all else of `tatolab` be.

    `tatolab` itself becomes a namespace of every folder of that name on the
    path. A regular package among them (`tatolab/__init__.py` of another maker)
    is not executed, but its other parts can be imported.
    """

    def __init__(self, folder: str) -> None:
        self.folder = os.path.join(folder, PACKAGE)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == PACKAGE:
            spec = ModuleSpec(PACKAGE, None, is_package=True)
            spec.submodule_search_locations = self.portions()
            return spec
        if name == LENT:
            folder = os.path.join(self.folder, "stream")
            return spec_from_file_location(
                LENT, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
            )
        return None

    def portions(self) -> list[str]:
        """Every folder that holds a part of `tatolab`, the lent one first."""
        portions = [self.folder]
        for entry in sys.path:
            portions.append(os.path.join(entry or os.getcwd(), PACKAGE))
        # Editable installs have finders of their own.
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or finder is PathFinder or find is None:
                continue
            spec = find(PACKAGE, None)
            if spec is not None:
                portions.extend(spec.submodule_search_locations or [])
        seen: dict[str, None] = {}
        for portion in portions:
            if os.path.isdir(portion):
                seen.setdefault(portion)
        return list(seen)


def lend(folder: str) -> None:
    """Make `tatolab.stream` the package below `folder`, for this process."""
    # A .pth file of the .venv may have imported its own at start-up; in a
    # process that multiprocessing forked ours is there already.
    if not any(isinstance(finder, LentFinder) for finder in sys.meta_path):
        for name in [n for n in sys.modules if n == PACKAGE or n.startswith(PACKAGE + ".")]:
            del sys.modules[name]
    sys.meta_path.insert(0, LentFinder(folder))  # pyright: ignore[reportArgumentType]


def merge_path() -> None:
    """Let `tatolab` have parts in folders that were put on the path since."""
    package = sys.modules.get(PACKAGE)
    for finder in sys.meta_path:
        if isinstance(finder, LentFinder) and package is not None:
            package.__path__ = finder.portions()


class ProjectLoader(SourceFileLoader):
    """Loads a module of a project from source, never from a `.pyc`.

    A `.pyc` is checked by time and size, and two saves within a second that
    keep the size are one to it. `read` gives the source; the module's
    `__file__` is `path`, wherever the source was read from.
    """

    def __init__(self, fullname: str, path: str, read: Callable[[str], bytes]) -> None:
        super().__init__(fullname, path)
        self._read = read

    def get_data(self, path: str) -> bytes:
        return self._read(path) if path == self.path else super().get_data(path)

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        try:
            code = self.source_to_code(source, self.path)
        except ValueError as error:  # zero bytes, before Python 3.12
            raise SyntaxError(str(error), (self.path, None, None, None)) from None
        except SyntaxError as error:
            error.filename = error.filename or self.path  # bad bytes have no place
            raise
        finally:
            self._remember(fullname)
        return code

    def _remember(self, fullname: str) -> None:
        # Tracebacks and inspect read the lines here, not on the disk, which may
        # differ by now. Entries without a time are never checked against it.
        try:
            text = self.get_source(fullname) or ""
        except (ImportError, SyntaxError):
            return  # it cannot be decoded
        linecache.cache[self.path] = (len(text), None, text.splitlines(True), self.path)

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write no `.pyc`."""


class SnapshotFinder:
    """Finds the modules of a project in a snapshot of it (docs/compile-protocol.md)."""

    def __init__(self, folder: str, manifest: Any) -> None:
        self.folder = folder
        self.modules: dict[str, Any] = manifest["modules"]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        entry = self.modules.get(name)
        if entry is None:
            return None
        origin: str = entry["origin"]
        if not entry["file"]:
            return _folder_spec(name, origin)
        file = os.path.join(self.folder, "files", entry["file"])
        return project_spec(name, origin, entry["package"], lambda _: _contents(file))


class RestFinder:
    """Finds the other modules of a project in a snapshot of it: those that were
    not seen to be imported, and are by a name that is made at run time.

    It stands in for the project's folder, which comes last of the path.
    """

    def __init__(self, folder: str, manifest: Any) -> None:
        self.file = os.path.join(folder, "rest")
        self.project: str = manifest["project"]
        self.modules: dict[str, Any] = manifest["rest"]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        entry = self.modules.get(name)
        if entry is None:
            return None
        found = PathFinder.find_spec(name, path)
        places = [] if found is None else [found.origin] if found.origin else found.submodule_search_locations or ()
        if not all(is_own(place, self.project) for place in (*places, *(path or ())[:1])):
            return None  # of that name there is something installed
        origin: str = entry["origin"]
        if entry["at"] is None:
            return _folder_spec(name, origin)
        at, size = entry["at"]
        return project_spec(name, origin, entry["package"], lambda _: _contents(self.file, at, size))


def is_own(path: str, project: str) -> bool:
    """Whether a file or folder is a project's own, and not installed in it."""
    path = os.path.realpath(path)
    if not path.startswith(project + os.sep) and path != project:
        return False
    parts = path[len(project) + 1 :].split(os.sep)
    installed = path.startswith(os.path.realpath(sys.prefix) + os.sep)
    return not (installed or ".venv" in parts or "site-packages" in parts or "dist-packages" in parts)


def _folder_spec(name: str, folder: str) -> ModuleSpec:
    """The spec of a namespace package: a folder without __init__.py."""
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [folder]
    return spec


def project_spec(name: str, origin: str, package: bool, read: Callable[[str], bytes]) -> ModuleSpec | None:
    """The spec of a module that says it is `origin` and reads its source from `read`."""
    return spec_from_file_location(
        name,
        origin,
        loader=ProjectLoader(name, origin, read),
        submodule_search_locations=[os.path.dirname(origin)] if package else None,
    )


def use_snapshot(folder: str) -> None:
    """Import the project's modules from the snapshot `folder`."""
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
        manifest: Any = json.load(file)
    if manifest["version"] != 1:
        raise ImportError(f"snapshot {folder} is of version {manifest['version']}, this runtime reads 1")
    at = 1 if sys.meta_path and isinstance(sys.meta_path[0], LentFinder) else 0
    sys.meta_path.insert(at, SnapshotFinder(folder, manifest))  # pyright: ignore[reportArgumentType]
    if manifest.get("rest"):
        at = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
        sys.meta_path.insert(at, RestFinder(folder, manifest))  # pyright: ignore[reportArgumentType]


def _contents(file: str, at: int = 0, size: int = -1) -> bytes:
    with open(file, "rb") as stream:
        stream.seek(at)
        return stream.read(size)
