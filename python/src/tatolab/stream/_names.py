"""The one rule for names of streams, nodes and ports (`service/name` in Go)."""

from __future__ import annotations

import unicodedata

MAX_LENGTH = 63
_ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-._~")


def cast(raw: object, what: str = "name") -> str:
    """Make `raw` URL-safe: lower case, no accents, other characters `-`.

    Raises `TypeError` for what is no string, `ValueError` for a name of which
    nothing is left. `what` says in the error which name it was.
    """
    if not isinstance(raw, str):
        raise TypeError(f"{what} must be a string, not {type(raw).__name__}")
    out: list[str] = []
    dash = False
    for char in unicodedata.normalize("NFKD", raw):
        if unicodedata.category(char) == "Mn":
            continue
        char = char.lower()
        if char == "-" or char not in _ALLOWED:
            dash = True
            continue
        if dash and out:
            out.append("-")
        dash = False
        out.append(char)
    name = "".join(out)[:MAX_LENGTH].rstrip("-")
    if name in ("", ".", ".."):
        raise ValueError(f"{raw!r} is no usable {what}: it casts to {name!r}; a name needs a letter or a digit")
    return name


def listing(names: object) -> str:
    """`names`, an iterable of strings, as text for an error: `"a", "b"`."""
    text = ", ".join(f'"{name}"' for name in names)  # type: ignore[attr-defined]
    return text or "none"
