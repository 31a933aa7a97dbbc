"""What a field of a configuration takes, beside its type.

A limit stands in `Annotated`: the check, the JSON Schema of the catalog and the
tests of the documentation read it there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Between:
    """A number, both ends included."""

    least: float
    most: float

    def holds(self, value: float) -> bool:
        return self.least <= value <= self.most

    def schema(self) -> dict[str, Any]:
        return {"minimum": self.least, "maximum": self.most}

    def __str__(self) -> str:
        return f"between {self.least} and {self.most}"


@dataclass(frozen=True)
class Text:
    """The name of `what`: not blank, and without the byte that would end it for the kernel."""

    what: str

    def holds(self, value: str) -> bool:
        return bool(value.strip()) and "\0" not in value

    def schema(self) -> dict[str, Any]:
        return {"pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"}

    def __str__(self) -> str:
        return self.what


def limits(metadata: Iterable[Any]) -> list[Between | Text]:
    """The limits among what an `Annotated` holds."""
    return [m for m in metadata if isinstance(m, (Between, Text))]
