"""The modes `compile`, `check` and `catalog` of the bootstrap: docs/compile-protocol.md."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from .._lend.modules import merge_path
from .errors import CompileError, from_exception
from .project import Project, Source

ANSWER_FD = 3


def main(mode: str) -> NoReturn:
    """Answer the request on descriptor 0 and end the process."""
    os.set_inheritable(ANSWER_FD, False)
    with os.fdopen(os.dup(0), "rb") as stdin:
        text = stdin.read()
    # The project's code is to find an end of input, not our request.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    try:
        request = _request(text)
        answer = {"compile": compile_project, "check": check, "catalog": catalog}[mode](request)
    except CompileError as error:
        answer = error.answer()
    with os.fdopen(ANSWER_FD, "w", encoding="utf-8") as out:
        json.dump(answer, out)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that the project's code started must not keep this process up.
    os._exit(0)


def _request(text: bytes) -> dict[str, Any]:
    """The request, whatever values somebody has typed into it."""

    def integer(digits: str) -> int | float:
        # int() refuses thousands of digits; what is no JSON value is named later.
        return int(digits) if len(digits) <= 100 else float(digits)

    try:
        return json.loads(text, parse_int=integer)
    except RecursionError:
        raise CompileError("a value is nested too deeply", code="BadRequest") from None


def compile_project(request: dict[str, Any]) -> dict[str, Any]:
    """Compile the stream that `request` names and keep the code it needs."""
    folder: str = request["project"]
    env = _enter(folder, request.get("env"))
    module_name, function_name, file = _target(request.get("target") or "stream.py", folder)
    package = None if file else module_name.split(".")[0]
    project = Project(folder, package)
    _find_first(project)

    module = _run(folder, lambda: importlib.import_module(module_name))
    written = file or module_name
    function = _function(module, function_name, written)
    from .._builder import declarations_of, graph_of
    from .._names import cast
    from .._stream import build_stream

    name: str | None = request.get("name")
    if name is not None:
        try:
            cast(name, "name of a stream")
        except ValueError as error:
            raise CompileError(str(error), code="InvalidName") from None
    builder = _run(folder, lambda: build_stream(function, name))

    # What was imported by a computed name belongs to nobody in particular:
    # every node counts as changed when it changes. What may be imported so, but
    # was not yet, belongs to the nodes that import by computed names.
    declarations = declarations_of(builder)
    own = {node: project.closure([d.cls.__module__]) for node, d in declarations.items()}
    followed = project.closure([module_name]).union(*own.values())
    unfollowed = project.loaded() - followed
    unfollowed |= project.closure(unfollowed) - followed
    everything = followed | unfollowed
    rest, whole = project.rest(everything)
    if not whole and project.computes(everything):
        print(
            f"{folder} is too large to be kept as a whole: {len(rest)} of its modules are, beside those that are "
            "imported by name. Others that are imported by a name made at run time come from the disk, as it is then"
        )
    nodes: dict[str, Any] = {}
    for node, declaration in declarations.items():
        nodes[node] = {
            "inputs": [{"port": port.name, "profile": port.delivery_profile} for port in declaration.inputs.values()],
            "outputs": list(declaration.outputs),
            "execution": {"mode": declaration.mode, "interval_ms": declaration.interval_ms},
            "hash": _node_hash(project, own[node], unfollowed, rest),
            "description": declaration.description,
        }
    answer: dict[str, Any] = {
        "ok": True,
        "graph": graph_of(builder),
        "function": {
            "target": f"{written}:{function.__name__}",
            "description": " ".join(inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].split()),
        },
        "snapshot": _keep(project, everything, rest, request["snapshot_root"]),
        "code_hash": project.hash(everything),
        "nodes": nodes,
    }
    if env:
        answer["env"] = env
    return answer


def _node_hash(project: Project, own: set[str], unfollowed: set[str], rest: list[Source]) -> str:
    """What the code of a node hashes to: "" for a built-in one."""
    if not own:
        return ""
    modules = own | unfollowed
    return project.hash(modules, rest if project.computes(modules) else ())


def _keep(project: Project, modules: set[str], rest: list[Source], root: str) -> str:
    """A snapshot of `modules`, and of the `rest`, below `root`."""
    try:
        return project.snapshot(modules, rest, root)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise CompileError(f"cannot keep a snapshot of the code in {root}: {why}", code="RecordFailed") from None


def _find_first(project: Project) -> None:
    """Let `project` find modules, after the lent package and before all others."""
    sys.meta_path.insert(1, project)  # pyright: ignore[reportArgumentType]


def _enter(folder: str, given: dict[str, str] | None) -> dict[str, str]:
    """Make this process look as a node's will: environment, path, arguments."""
    from .env import project_env

    try:
        env = project_env(os.path.join(folder, "pyproject.toml"))
    except OSError as error:
        raise CompileError(f"cannot read {error.filename}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise CompileError(str(error)) from None
    os.environ.update(env)
    os.environ.update(given or {})
    os.chdir(folder)
    sys.path.insert(0, folder)
    merge_path()
    sys.argv = [""]
    return env


def _target(target: str, folder: str) -> tuple[str, str | None, str | None]:
    """Module name, function name, and the file as written if it was one."""
    place, colon, function = target.partition(":")
    if colon and not function:
        raise CompileError(
            f"target {target!r} names no function after the colon", f"write {place}, or {place}:FUNCTION"
        )
    if not place.endswith(".py"):
        if not colon:
            raise CompileError(
                f"target {target!r} is neither a file nor module:function",
                f"write {place}.py for a file of the project, or {place}:FUNCTION for an installed package",
            )
        return place, function, None
    path = os.path.normpath(os.path.join(folder, place))
    relative = os.path.relpath(path, folder)
    if relative.startswith(".."):
        raise CompileError(
            f"{place} lies outside of the project {folder}",
            f"give its project: --dir {os.path.dirname(path)}",
        )
    if not os.path.isfile(path):
        if place == "stream.py":
            raise CompileError(
                f"{folder} has no stream.py",
                "name the file to load, or begin a project with: tatolab new DIR",
            )
        raise CompileError(f"{folder} has no file {place}", "check the name; it is relative to the project's folder")
    parts = relative[: -len(".py")].split(os.sep)
    if any("." in part for part in parts):
        raise CompileError(
            f"{relative} cannot be imported: a dot in its name separates modules",
            "name the file and its folders without further dots",
        )
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts), function or None, relative


def _function(module: ModuleType, name: str | None, written: str) -> Callable[..., Any]:
    from .._stream import is_stream_function

    here: dict[str, Any] = vars(module)
    streams = [
        found
        for found, value in here.items()
        if is_stream_function(value) and (value.__module__ == module.__name__ or name == found)
    ]
    choices = [f"{written}:{stream}" for stream in streams]
    if name is None:
        if len(streams) == 1:
            return here[streams[0]]
        if streams:
            raise CompileError(
                f"{written} has {len(streams)} streams: {', '.join(streams)}",
                f"say which, for example: tatolab run {choices[0]}",
                choices=choices,
            )
        plain = [
            found
            for found, value in here.items()
            if inspect.isfunction(value)
            and value.__module__ == module.__name__
            and "StreamBuilder" in str(value.__annotations__)
        ]
        raise CompileError(
            f"{written} has no function decorated with @stream",
            f"write @stream above `def {plain[0] if plain else 'my_stream'}(stream_builder: StreamBuilder) -> None:`",
        )
    if name in streams:
        return here[name]
    if name in here:
        raise CompileError(
            f"{written}: {name} is no stream", "write @stream above it, if it takes a StreamBuilder", choices=choices
        )
    there = f"its streams: {', '.join(streams)}" if streams else "it has no stream at all"
    raise CompileError(f"{written} has no function {name}; {there}", choices=choices)


def _run(folder: str, call: Callable[[], Any]) -> Any:
    """Run the project's code; what it raises becomes a `CompileError`."""
    try:
        return call()
    except CompileError:
        raise
    except BaseException as error:
        raise from_exception(error, folder) from None


def check(request: dict[str, Any]) -> dict[str, Any]:
    """Refuse a configuration that a node of a running stream could not be given."""
    from .._config import ConfigError, check_config, json_value
    from .._host.load import enter, node_class

    folder: str = request["project"]
    enter(request["snapshot"], folder)
    for node in request["nodes"]:
        where = f'config of node "{node["name"]}"'
        try:
            check_config(node_class(node["type"]), json_value(node["config"], where), where)
        except ConfigError as error:
            raise CompileError(str(error), code="BadRequest") from None
        except BaseException as error:
            refusal = from_exception(error, folder)
            refusal.code = "BadRequest"
            raise refusal from None
    return {"ok": True}


def catalog(request: dict[str, Any]) -> dict[str, Any]:
    """Every node class that the project can use: its own, and the built-in ones.

    A module that cannot be imported costs its own classes only; it is in `errors`.
    """
    import ast

    folder: str = request["project"]
    _enter(folder, request.get("env"))
    project = Project(folder)
    _find_first(project)
    from .._builtins import BUILTINS
    from .._config import schema
    from .._node import declaration_of

    found: dict[str, Any] = {}
    errors: list[dict[str, str]] = []
    for cls in BUILTINS:
        _list(cls, found, declaration_of, schema)
    for name, path, _ in project.modules():
        if not path.endswith(".py"):
            continue
        try:
            tree = ast.parse(project.read(path))
            declares = any(isinstance(n, ast.ClassDef) and n.decorator_list for n in ast.walk(tree))
        except (SyntaxError, ValueError, OSError):
            declares = True  # importing it says what is wrong
        if not declares:
            continue
        try:
            module: ModuleType = _run(folder, lambda name=name: importlib.import_module(name))
            found_here: list[Any] = list(vars(module).values())
            for cls in found_here:
                if inspect.isclass(cls) and cls.__module__ == name:
                    _run(folder, lambda cls=cls: _list(cls, found, declaration_of, schema))
        except CompileError as error:
            errors.append({"module": name, "error": str(error)})
    return {"ok": True, "nodes": list(found.values()), "errors": errors}


def _list(cls: type, found: dict[str, Any], declaration_of: Any, schema: Any) -> None:
    declaration = declaration_of(cls)
    if declaration is None:
        return
    found[declaration.type] = {
        "type": declaration.type,
        "description": declaration.description,
        "execution": declaration.mode,
        "inputs": [
            {"name": p.name, "description": p.description, "profile": p.delivery_profile}
            for p in declaration.inputs.values()
        ],
        "outputs": [{"name": p.name, "description": p.description} for p in declaration.outputs.values()],
        "config_schema": schema(declaration),
    }
