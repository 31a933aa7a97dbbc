"""The modules of a project: finding them, following their imports, keeping them."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import sys
import time
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import TYPE_CHECKING, Any

from .._lend.modules import PACKAGE, is_own, project_spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType

# Bounds of what is kept of a project beyond the modules that are seen to be
# imported. With them the largest project compiles in about 0.1 s more than a
# small one.
REST_MODULES = 2000
REST_BYTES = 16 << 20
REST_ENTRIES = 20_000  # of folders, whatever they hold


_NO_CODE = ("__pycache__", "node_modules")
_REST = "rest"


@dataclass(frozen=True)
class Source:
    """One module of the project as it was when it was first looked at."""

    name: str
    origin: str
    package: bool
    content: bytes | None  # None: a namespace package, a folder without __init__.py


class Project:
    """A project's own modules. Installed as a meta-path finder it notes the
    source of each as it is imported, so that the snapshot holds what ran and
    not what was saved a moment later."""

    def __init__(self, folder: str, package: str | None = None) -> None:
        """`package` is an installed top-level package that counts as well."""
        self.folder = os.path.realpath(folder)
        self._package = package
        self._sources: dict[str, Source | None] = {}
        self._content: dict[str, bytes] = {}
        self._imports: dict[str, set[str]] = {}
        self.whole = True  # the last look at `modules` saw all there are
        self._computes: set[str] = set()  # modules that import by a name made at run time

    def owns(self, name: str, path: str) -> bool:
        """Whether the module `name`, a file or folder at `path`, is the project's own."""
        if self._package is not None and name.split(".")[0] == self._package:
            return True
        return is_own(path, self.folder)

    # Finding

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.split(".")[0] == PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or spec.origin is None:
            return spec
        if not self.owns(name, spec.origin):
            return spec
        return project_spec(name, spec.origin, spec.submodule_search_locations is not None, self.read)

    def read(self, path: str) -> bytes:
        """The content of `path`, the same on every call."""
        if path not in self._content:
            with open(path, "rb") as file:
                self._content[path] = file.read()
        return self._content[path]

    def source(self, name: str) -> Source | None:
        """The project's module `name`, without importing it; None for another's."""
        if name not in self._sources:
            self._sources[name] = self._find(name)
        return self._sources[name]

    def _find(self, name: str) -> Source | None:
        parent, _, tail = name.rpartition(".")
        path: Sequence[str] | None = None
        if parent:
            above = self.source(parent)
            if above is None or not above.package:
                return None
            path = [above.origin if above.content is None else os.path.dirname(above.origin)]
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if not isinstance(spec, ModuleSpec):
            spec = self._locate(name, path)
        if spec is not None and spec.origin is not None:
            if not spec.origin.endswith(".py") or not self.owns(name, spec.origin):
                return None
            return Source(name, spec.origin, spec.submodule_search_locations is not None, self.read(spec.origin))
        # A namespace package. PathFinder finds one in another only once that
        # is imported, so look for the folder.
        for entry in sys.path if path is None else path:
            folder = os.path.join(entry, tail)
            if os.path.isdir(folder) and self.owns(name, folder):
                return Source(name, folder, True, None)
        return None

    def _locate(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if find is None:
                continue
            try:
                spec = find(name, path)
            except Exception:
                continue  # a finder of somebody else's, which import would fall over too
            if spec is not None:
                return spec
        return None

    # Following imports

    def closure(self, names: Iterable[str]) -> set[str]:
        """The project's modules that `names` and whatever they import come down to."""
        found: set[str] = set()
        open_names = [part for name in names for part in _with_parents(name)]
        while open_names:
            name = open_names.pop()
            if name in found:
                continue
            source = self.source(name)
            if source is None:
                continue
            found.add(name)
            open_names.extend(self.imports(source))
        return found

    def imports(self, source: Source) -> set[str]:
        """Every name that the import statements of a module may mean."""
        if source.name not in self._imports:
            found: set[str] = set()
            if source.content is not None:
                try:
                    tree = ast.parse(source.content, source.origin)
                except (SyntaxError, ValueError):
                    tree = ast.Module([], [])  # imported lazily if at all: fails there, with its line
                for statement in ast.walk(tree):
                    names = _imported(statement, source)
                    if names is None:
                        self._computes.add(source.name)
                    else:
                        found.update(names)
            self._imports[source.name] = {part for name in found for part in _with_parents(name)}
        return self._imports[source.name]

    def loaded(self) -> set[str]:
        """The project's modules that are imported by now, however that came."""
        return {name for name in list(sys.modules) if name != "__main__" and self.source(name) is not None}

    def computes(self, names: Iterable[str]) -> bool:
        """Whether one of `names`, whose imports were followed, imports by a name made at run time."""
        return not self._computes.isdisjoint(names)

    def rest(self, known: set[str]) -> tuple[list[Source], bool]:
        """The project's other modules, and whether these are all: there are bounds."""
        found: dict[str, Source] = {}
        folders: dict[str, Source] = {}
        size = 0
        for name, path, package in self.modules():
            if name in known or name in found:
                continue
            if not path.endswith(".py"):
                folders[name] = Source(name, path, package, None)
                continue
            try:
                content = self.read(path)
            except OSError:
                continue  # whoever imports it is told
            size += len(content)
            if len(found) == REST_MODULES or size > REST_BYTES:
                self.whole = False
                break
            found[name] = Source(name, path, package, content)
        above = {part for name in found for part in _with_parents(name)}
        found.update({name: source for name, source in folders.items() if name in above})
        return [found[name] for name in sorted(found)], self.whole

    def modules(self) -> Iterator[tuple[str, str, bool]]:
        """Name, file and whether it is a package, of every module that the folder holds,
        imported or not; a folder without __init__.py is one as well."""
        roots = [os.path.realpath(entry) for entry in sys.path if os.path.isdir(entry) and is_own(entry, self.folder)]
        open_folders = [(root, "") for root in dict.fromkeys([*roots, self.folder])]
        entries = 0
        self.whole = True
        while open_folders:
            folder, prefix = open_folders.pop(0)
            with contextlib.suppress(OSError), os.scandir(folder) as scan:
                listed = sorted(scan, key=lambda entry: entry.name)
                entries += len(listed)
                if entries > REST_ENTRIES:
                    self.whole = False
                    return
                open_folders.extend(
                    (e.path, f"{prefix}{e.name}.")
                    for e in listed
                    if e.name.isidentifier()
                    and e.name not in _NO_CODE
                    and e.is_dir(follow_symlinks=False)
                    and e.path not in roots
                    and not os.path.exists(os.path.join(e.path, "pyvenv.cfg"))
                )
                stems = [os.path.splitext(e.name) for e in listed if e.name.endswith(".py")]
                if prefix:
                    package = ("__init__", ".py") in stems
                    yield prefix[:-1], os.path.join(folder, "__init__.py") if package else folder, True
                for stem, ending in stems:
                    if stem.isidentifier() and stem != "__init__":
                        yield prefix + stem, os.path.join(folder, stem + ending), False

    # Keeping

    def hash(self, names: Iterable[str], rest: Iterable[Source] = ()) -> str:
        """A hash over the sources of `names`, and over `rest`."""
        digest = hashlib.sha256()
        for source in (*map(self.source, sorted(names)), *rest):
            if source is not None:
                content = source.content or b""
                digest.update(f"{source.name}\0{len(content)}\0".encode())
                digest.update(content)
        return digest.hexdigest()[:32]

    def snapshot(self, names: Iterable[str], rest: Iterable[Source], root: str) -> str:
        """Keep `names`, and `rest` in one file, in a folder below `root` that is named by
        its content; the name is returned."""
        modules: dict[str, Any] = {}
        contents: dict[str, bytes] = {}
        for name in sorted(names):
            source = self.source(name)
            if source is None:
                continue
            file = ""
            if source.content is not None:
                file = self._file(source)
                contents[f"files/{file}"] = source.content
            modules[name] = {"file": file, "origin": source.origin, "package": source.package}
        others: dict[str, Any] = {}
        joined = bytearray()
        for source in rest:
            at = None if source.content is None else [len(joined), len(source.content)]
            others[source.name] = {"at": at, "origin": source.origin, "package": source.package}
            joined += source.content or b""
        if others:
            contents[_REST] = bytes(joined)
        manifest = json.dumps(
            {"version": 1, "project": self.folder, "modules": modules, "rest": others}, indent=1, sort_keys=True
        ).encode()
        digest = hashlib.sha256(manifest)
        for file in sorted(contents):
            digest.update(f"{file}\0{len(contents[file])}\0".encode())
            digest.update(contents[file])
        name = digest.hexdigest()[:32]
        final = os.path.join(root, name)
        if os.path.isdir(final):
            return name
        os.makedirs(root, mode=0o700, exist_ok=True)
        building = os.path.join(root, f".new-{os.getpid()}-{time.monotonic_ns()}")
        os.mkdir(building, 0o700)
        try:
            for file, content in {"manifest.json": manifest, **contents}.items():
                path = os.path.join(building, file)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as out:
                    out.write(content)
                    out.flush()
                    os.fsync(out.fileno())  # a record will rely on it
            os.rename(building, final)
        except OSError:
            import shutil  # slow to import

            shutil.rmtree(building, ignore_errors=True)
            if not os.path.isdir(final):  # else another compilation was quicker
                raise
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return name

    def _file(self, source: Source) -> str:
        path = os.path.realpath(source.origin)
        if is_own(path, self.folder):
            return path[len(self.folder) + 1 :]
        tail = source.name.replace(".", "/")
        return f"site/{tail}/__init__.py" if source.package else f"site/{tail}.py"


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _imported(statement: ast.AST, source: Source) -> list[str] | None:
    """The names that a statement may import; None if they are made at run time."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        base = statement.module or ""
        if statement.level:
            parts = source.name.split(".")
            cut = statement.level - (1 if source.package else 0)
            if cut >= len(parts):
                return []
            base = ".".join([*parts[: len(parts) - cut], *([base] if base else [])])
        # `from package import name`: the name may be a module or not.
        return [base, *(f"{base}.{alias.name}" for alias in statement.names if alias.name != "*")]
    if isinstance(statement, ast.Call) and statement.args:
        function, argument = statement.func, statement.args[0]
        called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if called in ("import_module", "__import__"):
            name = argument.value if isinstance(argument, ast.Constant) else None
            return [name] if isinstance(name, str) and not name.startswith(".") else None
    return []
