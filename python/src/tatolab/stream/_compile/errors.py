"""What is told of a stream that does not compile."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# Frames below this folder are ours and no help to whoever wrote the stream.
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


# What the package refuses with.
_REFUSALS = (TypeError, ValueError, ImportError, RuntimeError)


class CompileError(Exception):
    """A refusal, with what to do next."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        code: str = "CompileFailed",
        trace: str = "",
        choices: list[str] | None = None,
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code
        self.trace = trace
        self.choices = choices or []

    def answer(self) -> dict[str, Any]:
        """The error as docs/compile-protocol.md has it."""
        answer: dict[str, Any] = {"ok": False, "code": self.code, "error": str(self)}
        if self.hint:
            answer["hint"] = self.hint
        if self.trace:
            answer["traceback"] = self.trace
        if self.choices:
            answer["choices"] = self.choices
        return answer


def user_traceback(error: BaseException) -> str:
    """The traceback of `error` without frames of ours and of the import machinery."""
    import traceback  # slow to import, and most nodes never raise

    shown = traceback.TracebackException.from_exception(error, compact=True)
    _strip(shown, set(), traceback.StackSummary.from_list)
    return "".join(shown.format())


def _strip(shown: Any, seen: set[int], stack: Callable[[Any], Any]) -> None:
    if shown is None or id(shown) in seen:
        return
    seen.add(id(shown))
    frames = [frame for frame in shown.stack if not _ours(frame.filename)]
    shown.stack = stack(frames)
    _strip(shown.__cause__, seen, stack)
    _strip(shown.__context__, seen, stack)
    for inner in getattr(shown, "exceptions", None) or ():
        _strip(inner, seen, stack)


def _ours(filename: str) -> bool:
    return filename.startswith((OURS, "<frozen ")) or filename == importlib.__file__


def from_exception(error: BaseException, project: str) -> CompileError:
    """What to say of an exception that the project's code raised."""
    import traceback

    trace = user_traceback(error)
    if isinstance(error, SyntaxError) and error.filename:
        place = _place(error.filename, error.lineno, project)
        return CompileError(f"{place}: {type(error).__name__}: {error.msg}", trace=trace)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not _ours(frame.filename)]
    inside = [f for f in theirs if f.filename.startswith(project + os.sep) and "site-packages" not in f.filename]
    text = str(error)
    # A refusal of ours speaks for itself; anything else is named by its type.
    refusal = bool(frames) and frames[-1].filename.startswith(OURS) and isinstance(error, _REFUSALS)
    if isinstance(error, SystemExit):
        text = f"the code ends the interpreter (SystemExit: {text})"
    elif not refusal:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    where = (inside or theirs)[-1:]
    if where:
        text = f"{_place(where[0].filename, where[0].lineno, project)}: {text}"
    if "  File " not in trace:
        trace = ""  # nothing but the error itself, which is told anyway
    return CompileError(text, _hint(error, project), trace=trace)


def _place(filename: str, line: int | None, project: str) -> str:
    if filename.startswith(project + os.sep):
        filename = filename[len(project) + 1 :]
    return filename if line is None else f"{filename}, line {line}"


def _hint(error: BaseException, project: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name
        top = name.split(".")[0]
        if top == "tatolab":
            return f"neither this runtime nor the project's .venv has {name}; correct the import, or remove it"
        if os.path.exists(os.path.join(project, top)) or os.path.exists(os.path.join(project, top + ".py")):
            return f"the project has no {name.replace('.', '/')}.py: correct the import, or write that file"
        return f"add the package that provides {top} to the project: uv add {top}, or .venv/bin/pip install {top}"
    return ""
