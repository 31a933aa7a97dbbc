"""Builds the distribution: PEP 517 and PEP 660, with the standard library alone.

The package is a folder of Python files, so a build is a zip of them and some
metadata. A build backend of others would have to be fetched first, and a
distribution (or a machine without a network) could not build this.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import tarfile
import zipfile

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Reproducible: nothing of the moment or the machine goes into an archive.
ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def _project() -> tuple[str, str, str]:
    """The metadata text, the version, and the file stem `name-version`."""
    with open(os.path.join(HERE, "pyproject.toml"), encoding="utf-8") as file:
        text = file.read()

    # pip may build with Python 3.10, which reads no TOML.
    def value(key: str) -> str:
        found = re.search(rf'^{key} = "(.*)"$', text, re.MULTILINE)
        if found is None:
            raise SystemExit(f"pyproject.toml has no line {key} = ...")
        return found.group(1)

    name, version = value("name"), value("version")
    metadata = (
        "Metadata-Version: 2.1\n"
        f"Name: {name}\n"
        f"Version: {version}\n"
        f"Summary: {value('description')}\n"
        f"Project-URL: Homepage, {value('Homepage')}\n"
        f"Requires-Python: {value('requires-python')}\n"
        "Classifier: Operating System :: POSIX :: Linux\n"
        "Classifier: Typing :: Typed\n"
    )
    return metadata, version, f"{name.replace('-', '_')}-{version}"


def _sources() -> list[str]:
    """The package's files, relative to `src`."""
    found: list[str] = []
    root = os.path.join(HERE, "src")
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for file in sorted(files):
            if file.endswith((".py", ".typed")):
                found.append(os.path.relpath(os.path.join(folder, file), root))
    return found


def _wheel(directory: str, contents: dict[str, bytes]) -> str:
    metadata, _, stem = _project()
    info = f"{stem}.dist-info"
    contents = {
        **contents,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tatolab-stream\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record: list[str] = []
    for name, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}\n")
    record.append(f"{info}/RECORD,,\n")
    contents[f"{info}/RECORD"] = "".join(record).encode()
    wheel = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            entry = zipfile.ZipInfo(name, ZIP_TIME)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return wheel


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: object = None) -> str:
    contents: dict[str, bytes] = {}
    for name in _sources():
        with open(os.path.join(HERE, "src", name), "rb") as file:
            contents[name] = file.read()
    return _wheel(wheel_directory, contents)


def build_editable(wheel_directory: str, config_settings: object = None, metadata_directory: object = None) -> str:
    source = os.path.join(HERE, "src")
    return _wheel(wheel_directory, {"tatolab-stream.pth": f"{source}\n".encode()})


def build_sdist(sdist_directory: str, config_settings: object = None) -> str:
    metadata, _, stem = _project()
    files = ["pyproject.toml", "backend/backend.py", *(f"src/{name}" for name in _sources())]
    contents = {"PKG-INFO": metadata.encode()}
    for name in files:
        with open(os.path.join(HERE, name), "rb") as file:
            contents[name] = file.read()
    archive_name = f"{stem}.tar.gz"
    with tarfile.open(os.path.join(sdist_directory, archive_name), "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, data in contents.items():
            entry = tarfile.TarInfo(f"{stem}/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return archive_name


def get_requires_for_build_wheel(config_settings: object = None) -> list[str]:
    return []


get_requires_for_build_editable = get_requires_for_build_sdist = get_requires_for_build_wheel
