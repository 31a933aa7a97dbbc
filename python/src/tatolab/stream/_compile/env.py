"""The environment a project gives its stream: `[tool.tatolab.env]` of `pyproject.toml`."""

from __future__ import annotations

import re
import sys
from typing import Any

TABLE = "tool.tatolab.env"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# What Python 3.10 reads, which has no TOML parser: NAME = "value" lines.
_LINE = re.compile(r"""\s*([A-Za-z0-9_-]+)\s*=\s*("(?:[^"\\]|\\["\\nt])*"|'[^']*')\s*(?:\#.*)?\Z""")
_ESCAPES = {'\\"': '"', "\\\\": "\\", "\\n": "\n", "\\t": "\t"}


def project_env(path: str) -> dict[str, str]:
    """The variables that the project file at `path` sets; none without a file or table.

    `ValueError` says what is wrong with the file or the table.
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return {}
    try:
        text = content.decode("utf-8")
        table = _table(text)
    except ValueError as error:
        raise ValueError(f"pyproject.toml: {error}") from None
    for name, value in table.items():
        if not _NAME.match(name):
            raise ValueError(f"pyproject.toml: [{TABLE}]: {name!r} is no name of an environment variable")
        if not isinstance(value, str):
            raise ValueError(f"pyproject.toml: [{TABLE}]: {name} is {value!r}; write it as a string")
        if "\0" in value:
            raise ValueError(f"pyproject.toml: [{TABLE}]: {name} holds a zero byte")
    return table


def _table(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib

        found: Any = tomllib.loads(text)
        for part in TABLE.split("."):
            found = found.get(part, {})
            if not isinstance(found, dict):
                raise ValueError(f"[{TABLE}] is no table")
        return found
    return _lines(text)


def _lines(text: str) -> dict[str, Any]:
    table: dict[str, Any] = {}
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("["):
            inside = stripped.split("#")[0].replace(" ", "") == f"[{TABLE}]"
        elif inside and stripped and not stripped.startswith("#"):
            match = _LINE.match(line)
            if match is None:
                raise ValueError(f'line {number}: with Python 3.10, [{TABLE}] takes lines NAME = "value" only')
            name, quoted = match.groups()
            value = quoted[1:-1]
            if quoted[0] == '"':
                value = re.sub(r"\\.", lambda m: _ESCAPES[m.group()], value)
            table[name] = value
    return table
