"""Compiling through the bootstrap, in a process of its own (docs/compile-protocol.md)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from harness import BOOTSTRAP, SOURCE, Stream, ask, compiled, refused, running, write

NODE = """
    from tatolab.stream import node

    @node(execution="continuous", interval_ms=20)
    class N:
        '''A node.'''
        @node.output()
        def out(self): ...
        def process(self, ctx): ...
"""

STREAM = """
    from tatolab.stream import stream
    from nodes.n import N

    @stream
    def s(b):
        '''A stream.

        More of it.
        '''
        b.add(N)
"""


def project(tmp_path: Path, files: dict[str, str] | None = None) -> Path:
    return write(tmp_path / "p", {"stream.py": STREAM, "nodes/__init__.py": "", "nodes/n.py": NODE, **(files or {})})


def manifest(folder: Path, answer: dict[str, Any]) -> dict[str, Any]:
    path = folder.parent / f"{folder.name}.snapshots" / answer["snapshot"] / "manifest.json"
    return json.loads(path.read_text())["modules"]


def test_answer(tmp_path: Path) -> None:
    folder = project(tmp_path)
    answer = compiled(folder)
    assert answer["function"] == {"target": "stream.py:s", "description": "A stream."}
    assert answer["graph"]["nodes"] == [{"name": "n", "type": "nodes.n:N", "config": {}}]
    described = answer["nodes"]["n"]
    assert described.pop("hash")
    assert described == {
        "inputs": [],
        "outputs": ["out"],
        "execution": {"mode": "continuous", "interval_ms": 20},
        "description": "A node.",
    }
    assert manifest(folder, answer) == {
        "nodes": {"file": "nodes/__init__.py", "origin": f"{folder}/nodes/__init__.py", "package": True},
        "nodes.n": {"file": "nodes/n.py", "origin": f"{folder}/nodes/n.py", "package": False},
        "stream": {"file": "stream.py", "origin": f"{folder}/stream.py", "package": False},
    }
    assert not list(folder.rglob("__pycache__")), "compiling leaves nothing in the project"
    assert compiled(folder, name="Other One")["graph"]["stream"] == "other-one"


def test_a_snapshot_is_named_by_its_content(tmp_path: Path) -> None:
    folder = project(tmp_path)
    first = compiled(folder)
    (folder / "stream.py").touch()
    (folder / "notes.txt").write_text("unrelated")
    assert compiled(folder) == first
    # Another module changes what is kept, and neither the code that is known to run nor a node.
    (folder / "unrelated.py").write_text("raise SystemExit")
    again = compiled(folder)
    assert again["snapshot"] != first["snapshot"]
    assert (again["code_hash"], again["nodes"]) == (first["code_hash"], first["nodes"])
    (folder / "nodes/n.py").write_text((folder / "nodes/n.py").read_text() + "\n")
    assert compiled(folder)["snapshot"] != first["snapshot"]
    kept = os.listdir(tmp_path / "p.snapshots")
    assert len(kept) == 3 and not [name for name in kept if name.startswith(".")]


IMPORTS = {
    "stream.py": """
        from tatolab.stream import stream
        import nodes.a, nodes.b

        @stream
        def s(b):
            b.add(nodes.a.A, name="a")
            b.add(nodes.b.B, name="b")
    """,
    "nodes/__init__.py": "",
    "nodes/a.py": """
        from __future__ import annotations
        import json
        from tatolab.stream import node
        from .deep import first
        @node(execution="continuous")
        class A:
            def process(self, ctx):
                import lazy
                from later.sub import leaf
                import importlib
                importlib.import_module("by_name")
    """,
    "nodes/b.py": """
        from tatolab.stream import node
        import computed
        @node(execution="continuous")
        class B:
            def process(self, ctx): ...
    """,
    "nodes/deep/__init__.py": "from . import first",
    "nodes/deep/first.py": "from ... import nodes\nfrom ..sibling import X\n",
    "nodes/sibling.py": "X = 1\n",
    "lazy.py": "import lazier\n",
    "lazier.py": "import lazy\nimport numpy, no_such_module\n",
    "later/sub/leaf.py": "",
    "by_name.py": "",
    "computed.py": "import importlib\nimportlib.import_module('plug' + 'in')\n",
    "plugin.py": "",
    "unused.py": "",
}


def test_imports_are_followed(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", dict(IMPORTS))
    (folder / "nodes/deep/first.py").write_text("from ..sibling import X\n")
    answer = compiled(folder)
    modules = manifest(folder, answer)
    assert sorted(modules) == [
        "by_name",
        "computed",
        "later",
        "later.sub",
        "later.sub.leaf",
        "lazier",
        "lazy",
        "nodes",
        "nodes.a",
        "nodes.b",
        "nodes.deep",
        "nodes.deep.first",
        "nodes.sibling",
        "plugin",
        "stream",
    ]
    assert modules["later"] == {"file": "", "origin": f"{folder}/later", "package": True}


@pytest.mark.parametrize(
    ("edited", "changed"),
    [
        ("nodes/a.py", {"a"}),
        ("nodes/b.py", {"b"}),
        ("nodes/sibling.py", {"a"}),
        ("lazy.py", {"a"}),
        ("lazier.py", {"a"}),
        ("later/sub/leaf.py", {"a"}),
        ("by_name.py", {"a"}),
        ("computed.py", {"b"}),
        ("nodes/__init__.py", {"a", "b"}),
        ("plugin.py", {"a", "b"}),
        ("stream.py", set[str]()),
        ("unused.py", {"b"}),  # which imports by a computed name, perhaps this one later
    ],
)
def test_a_node_changes_with_what_it_imports(tmp_path: Path, edited: str, changed: set[str]) -> None:
    folder = write(tmp_path / "p", dict(IMPORTS))
    (folder / "nodes/deep/first.py").write_text("from ..sibling import X\n")
    before = compiled(folder)["nodes"]
    with (folder / edited).open("a") as file:
        file.write("\n# edited\n")
    after = compiled(folder)["nodes"]
    assert {name for name in before if before[name]["hash"] != after[name]["hash"]} == changed


def test_lazily_imported_modules_run_from_the_snapshot(tmp_path: Path) -> None:
    folder = project(
        tmp_path,
        {
            "nodes/n.py": """
                from tatolab.stream import node
                @node(execution="continuous", interval_ms=20)
                class N:
                    def process(self, ctx):
                        from space.late import WHAT
                        from .near import NEAR
                        import inspect, space.late as late
                        print("it is", WHAT, NEAR, late.__file__, inspect.getsource(late).strip())
            """,
            "space/late.py": "WHAT = 'kept'\n",
            "nodes/near.py": "NEAR = 'near'\n",
        },
    )
    stream = Stream(folder)
    shutil.rmtree(folder / "space")
    shutil.rmtree(folder / "nodes")
    (folder / "stream.py").unlink()
    node = stream.spawn("n")
    try:
        node.start()
        node.printed(f"it is kept near {folder}/space/late.py WHAT = 'kept'")
        assert node.stop() == 0 and not node.of("error")
    finally:
        stream.close()


def test_modules_imported_by_a_computed_name_run_from_the_snapshot(tmp_path: Path) -> None:
    folder = project(
        tmp_path,
        {
            "nodes/n.py": """
                import importlib
                import numbers
                from tatolab.stream import node
                @node(execution="continuous", interval_ms=20)
                class N:
                    def process(self, ctx):
                        plugin = importlib.import_module(".".join(["plugins", "fast", "edge"]))
                        same = importlib.import_module("num" + "bers") is numbers
                        print("it is", plugin.WHAT, plugin.__file__, same)
                        print("not ours:", *(importlib.import_module(name).__name__ for name in ("queue", "wave")))
            """,
            "plugins/__init__.py": "",
            "plugins/fast/edge.py": "from . import helper\nWHAT = 'kept ' + helper.WHICH\n",
            "plugins/fast/helper.py": "WHICH = 'whole'\n",
            # What the path has before the project's folder goes first, as ever.
            "queue.py": "raise SystemExit('shadows the standard library')",
            "wave.py": "raise SystemExit('shadows the standard library')",
            ".venv/lib/site-packages/nothing.py": "",
            "data/part/readme.txt": "",
        },
    )
    stream = Stream(folder)
    kept = tmp_path / "p.snapshots" / stream.answer["snapshot"] / "manifest.json"
    assert list(json.loads(kept.read_text())["rest"]) == [
        "plugins",
        "plugins.fast",
        "plugins.fast.edge",
        "plugins.fast.helper",
        "queue",
        "wave",
    ]
    edge = folder / "plugins/fast/edge.py"
    edge.write_text("WHAT = 'edited'\n")
    (folder / "plugins/fast/helper.py").unlink()
    (folder / "plugins/__init__.py").write_text("raise SystemExit('edited')")
    node = stream.spawn("n")
    try:
        node.start()
        node.printed(f"it is kept whole {edge} True")
        node.printed("not ours: queue wave")
        assert node.stop() == 0 and not node.of("error")
    finally:
        stream.close()


def test_what_is_kept_of_a_project_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tatolab.stream._compile import project as module

    folder = write(tmp_path / "p", {f"m{n}.py": "x" * n for n in range(10)})

    def rest() -> tuple[list[str], bool]:
        sources, whole = module.Project(str(folder)).rest({"m3"})
        return [source.name for source in sources], whole

    names = [f"m{n}" for n in range(10) if n != 3]
    assert rest() == (names, True)
    monkeypatch.setattr(module, "REST_MODULES", 4)
    assert rest() == (names[:4], False)
    monkeypatch.setattr(module, "REST_MODULES", 9)
    assert rest() == (names, True)
    monkeypatch.setattr(module, "REST_BYTES", 1 + 2 + 4)
    assert rest() == (names[:4], False)
    monkeypatch.setattr(module, "REST_ENTRIES", 9)
    assert rest() == ([], False)


def test_a_module_is_imported_once(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "p",
        {
            "stream.py": """
                print("imports stream")
                from tatolab.stream import stream
                LIMIT = 3
                from n import N

                @stream
                def s(b):
                    b.add(N)
            """,
            "n.py": NODE + "\n    from stream import LIMIT\n",
        },
    )
    assert compiled(folder)["printed"].count("imports stream") == 1


def test_several_streams(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "p",
        {
            "stream.py": "from tatolab.stream import stream\nfrom other import c\n"
            "@stream\ndef a(b): ...\n@stream\ndef b(b): ...\ndef plain(b): ...\n",
            "other.py": "from tatolab.stream import stream\n@stream\ndef c(b): ...\n",
            "sub/more.py": "from tatolab.stream import stream\n@stream\ndef d(b): ...\n",
        },
    )
    answer = refused(folder)
    assert answer["error"] == "stream.py has 2 streams: a, b" and answer["choices"] == ["stream.py:a", "stream.py:b"]
    assert "tatolab run stream.py:a" in answer["hint"]
    assert compiled(folder, "stream.py:b")["graph"]["stream"] == "b"
    assert compiled(folder, "other.py")["function"]["target"] == "other.py:c"
    assert compiled(folder, "sub/more.py")["function"]["target"] == "sub/more.py:d"
    assert compiled(folder, "sub.more:d")["graph"]["stream"] == "d"


@pytest.mark.parametrize(
    ("text", "error", "trace"),
    [
        ("def f(:\n  pass\n", "stream.py, line 1: SyntaxError: ", "def f(:"),
        ("x = 1\n  y = 2\n", "stream.py, line 2: IndentationError: ", "y = 2"),
        (
            "\nimport no_such_module\n",
            "stream.py, line 2: ModuleNotFoundError: No module named 'no_such_module'",
            "line 2",
        ),
        ("import nodes.m\n", "stream.py, line 1: ModuleNotFoundError: No module named 'nodes.m'", "import nodes.m"),
        ("from nodes.n import M\n", "stream.py, line 1: ImportError: cannot import name 'M'", "import M"),
        (
            "from tatolab.stream import SpeakerSink\n",
            "stream.py, line 1: tatolab.stream has no SpeakerSink: audio",
            "line 1",
        ),
        ("import tatolab.camera\n", "stream.py, line 1: ModuleNotFoundError: No module named 'tatolab.camera'", ""),
        ("\n\n1 / 0\n", "stream.py, line 3: ZeroDivisionError: division by zero", "1 / 0"),
        ("raise SystemExit(3)\n", "stream.py, line 1: the code ends the interpreter (SystemExit: 3)", "SystemExit"),
        ("raise KeyboardInterrupt\n", "stream.py, line 1: KeyboardInterrupt", ""),
        ("import helper\n", "helper.py, line 2: RuntimeError: deep", 'stream.py", line 1'),
        ("x = '\\ud800'\nraise ValueError(x)\n", "stream.py, line 2: ValueError: \ud800", ""),
        (b"\xff\xfe\x00", "stream.py", "SyntaxError"),
        ("def s(b): ...\n", "stream.py has no function decorated with @stream", ""),
        (
            "from tatolab.stream import stream\n@stream()\ndef s(b): ...\n",
            "stream.py, line 2: @stream takes no arguments (a stream is named after its function): write @stream",
            "@stream()",
        ),
        (
            "from tatolab.stream import *\n@stream\ndef s(b):\n  c = b.add(CameraSource)\n  c.output('vid')\n",
            'stream.py, line 5: node "camerasource" (CameraSource) has no output "vid"; its outputs: "video"',
            "c.output('vid')",
        ),
        (
            "from tatolab.stream import *\n@stream\ndef s(b):\n  b.add(CameraSource, config={'fps': 'x'})\n",
            "stream.py, line 4: config of node \"camerasource\"['fps'] is 'x', not a number",
            "line 4, in s",
        ),
        (
            "from tatolab.stream import *\n@stream\ndef s(b):\n"
            "  b.add(TestPatternSource, config={'width': -5})\n",
            "stream.py, line 4: config of node \"testpatternsource\"['width'] is -5, not between 64 and 8192",
            "line 4, in s",
        ),
        (
            "from tatolab.stream import *\n@stream\ndef s(b):\n"
            "  try:\n    {}['k']\n  except KeyError:\n    raise OSError('e')\n",
            "stream.py, line 7: OSError: e",
            "During handling of the above exception",
        ),
    ],
)
def test_refusals(tmp_path: Path, text: str | bytes, error: str, trace: str) -> None:
    folder = project(tmp_path, {"helper.py": "def f():\n    raise RuntimeError('deep')\nf()\n"})
    (folder / "stream.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    answer = refused(folder)
    assert answer["code"] == "CompileFailed"
    assert answer["error"].startswith(error), answer["error"]
    shown = answer.get("traceback", "")
    assert trace in shown
    assert "tatolab/stream/_" not in shown and "importlib" not in shown, "frames of ours"


@pytest.mark.parametrize(
    ("target", "name", "code", "texts"),
    [
        ("missing.py", None, "CompileFailed", ["has no file missing.py"]),
        ("../other.py", None, "CompileFailed", ["../other.py lies outside of the project", "--dir"]),
        ("stream", None, "CompileFailed", ["neither a file nor module:function", "write stream.py"]),
        ("stream.py:", None, "CompileFailed", ["names no function"]),
        ("stream.py:x", None, "CompileFailed", ["stream.py has no function x; its streams: s"]),
        ("stream.py:N", None, "CompileFailed", ["stream.py: N is no stream"]),
        ("no.such:thing", None, "CompileFailed", ["No module named 'no'", "uv add no"]),
        ("nodes/n.py", None, "CompileFailed", ["nodes/n.py has no function decorated with @stream"]),
        ("a.b.py", None, "CompileFailed", ["a.b.py cannot be imported", "dot"]),
        ("stream.py", "---", "InvalidName", ["'---' is no usable name of a stream"]),
    ],
)
def test_targets(tmp_path: Path, target: str, name: str | None, code: str, texts: list[str]) -> None:
    folder = project(tmp_path, {"a.b.py": ""})
    (tmp_path / "other.py").write_text("")
    answer = refused(folder, target, name=name)
    assert answer["code"] == code
    for text in texts:
        assert text in answer["error"] + "\n" + answer.get("hint", "")


def test_no_stream_file(tmp_path: Path) -> None:
    answer = refused(write(tmp_path / "p", {"x.py": ""}))
    assert "has no stream.py" in answer["error"] and "tatolab new" in answer["hint"]


def test_a_plain_function_is_pointed_out(tmp_path: Path) -> None:
    text = "from tatolab.stream import StreamBuilder\ndef mine(b: StreamBuilder) -> None: ...\n"
    answer = refused(write(tmp_path / "p", {"stream.py": text}))
    assert "def mine(stream_builder: StreamBuilder)" in answer["hint"]


def test_classes_in_the_stream_file_and_in_main(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "p",
        {
            "stream.py": NODE
            + """
    from tatolab.stream import stream
    @stream
    def s(b): b.add(N)
""",
        },
    )
    assert compiled(folder)["graph"]["nodes"][0]["type"] == "stream:N"
    with running(folder) as stream:
        assert stream.nodes["n"].stop() == 0
    code = "from tatolab.stream import *\nexec(open('stream.py').read())\nprint(compile_stream_to_graph(s))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "N is defined in __main__" in done.stderr and "nodes/n.py" in done.stderr


def test_what_the_code_prints_and_does(tmp_path: Path) -> None:
    folder = project(tmp_path)
    with (folder / "stream.py").open("a") as file:
        file.write(
            "\nimport os, sys, threading, time\n"
            "print('printed', repr(sys.stdin.read()), os.getcwd(), os.environ['ROOM'], os.environ['DOOR'])\n"
            "print(os.get_inheritable(3), sys.flags.isolated)\n"
            "threading.Thread(target=time.sleep, args=(3600,)).start()\n"
        )
    (folder / "pyproject.toml").write_text(
        '[tool.tatolab]\nx = 1\n[tool.tatolab.env]\nROOM = "attic" # up\nDOOR = \'shut\'\nB = "a\\"b"\n[tool.other]\n'
    )
    answer = compiled(folder, env={"DOOR": "open"})
    assert answer["printed"] == f"printed '' {folder} attic open\nFalse 1\n"
    assert answer["env"] == {"ROOM": "attic", "DOOR": "shut", "B": 'a"b'}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[tool.tatolab.env]\nA = 3\n", "A"),
        ("[tool.tatolab.env]\nA-B = 'x'\n", "'A-B' is no name of an environment variable"),
        ("[tool.tatolab.env]\nA = \n", "pyproject.toml: "),
    ],
)
def test_bad_environment(tmp_path: Path, text: str, error: str) -> None:
    folder = project(tmp_path, {"pyproject.toml": text})
    answer = refused(folder)
    assert answer["error"].startswith("pyproject.toml: ") and error in answer["error"]


def test_environment_that_cannot_be_read(tmp_path: Path) -> None:
    folder = project(tmp_path, {"pyproject.toml/x": ""})
    assert refused(folder)["error"] == f"cannot read {folder}/pyproject.toml: is a directory"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .venv that holds other makers' packages of our name."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    write(
        site,
        {
            "tatolab/__init__.py": "raise RuntimeError('the foreign tatolab was executed')\n",
            "tatolab/stream/__init__.py": "raise RuntimeError('the foreign tatolab.stream was imported')\n",
            "tatolab/stream/extra.py": "",
            "tatolab/camera/__init__.py": "WHO = 'foreign camera'\n",
            "tatolab_early.pth": "import sys, types; sys.modules['tatolab'] = types.ModuleType('tatolab')\n",
            "acme/__init__.py": "",
            "acme/rig.py": "from tatolab.stream import stream\nfrom .parts import N\n@stream\ndef rig(b): b.add(N)\n",
            "acme/parts.py": NODE,
            "numpy_like/__init__.py": "from tatolab.stream import node\n",
        },
    )
    return folder


def test_the_lent_package_wins_and_hides_nothing(tmp_path: Path, environment: Path) -> None:
    folder = project(
        tmp_path,
        {
            "nodes/n.py": """
                import tatolab.stream, tatolab.camera, tatolab.tools
                from tatolab.stream import node
                @node(execution="continuous", interval_ms=50)
                class N:
                    def process(self, ctx):
                        print(tatolab.stream.__file__, tatolab.camera.WHO, tatolab.tools.WHO)
            """,
            "tatolab/tools.py": "WHO = 'project tools'\n",
        },
    )
    python = str(environment / "bin/python")
    stream = Stream(folder, python=python)
    try:
        node = stream.spawn("n").start()
        node.printed(f"{SOURCE}/tatolab/stream/__init__.py foreign camera project tools")
        assert node.stop() == 0 and not node.of("error")
    finally:
        stream.close()


def test_an_installed_package(tmp_path: Path, environment: Path) -> None:
    folder = write(tmp_path / "p", {"pyproject.toml": ""})
    python = str(environment / "bin/python")
    answer = compiled(folder, "acme.rig:rig", python=python)
    assert answer["function"]["target"] == "acme.rig:rig"
    modules = manifest(folder, answer)
    assert sorted(modules) == ["acme", "acme.parts", "acme.rig"]
    assert modules["acme.parts"]["file"] == "site/acme/parts.py"
    stream = Stream(folder, "acme.rig:rig", python)
    try:
        assert stream.spawn("n").start().stop() == 0
    finally:
        stream.close()


def test_the_environment_is_not_the_project(tmp_path: Path) -> None:
    """Packages in the project's own .venv are installed, not the project's code."""
    folder = project(tmp_path, {"nodes/n.py": "import lib_in_venv\n" + NODE.replace("\n    ", "\n")})
    venv.create(folder / ".venv", with_pip=False)
    site = next((folder / ".venv").glob("lib/python*/site-packages"))
    write(site, {"lib_in_venv.py": ""})
    answer = compiled(folder, python=str(folder / ".venv/bin/python"))
    assert "lib_in_venv" not in manifest(folder, answer)


def test_check(tmp_path: Path) -> None:
    """A configuration for a node that runs, against the code it runs with."""
    node = """
        from dataclasses import dataclass
        from tatolab.stream import node

        @dataclass
        class Config:
            level: int = 1
            def __post_init__(self):
                if self.level > 9:
                    raise ValueError("a level goes up to 9")

        @node(execution="manual")
        class N:
            def __init__(self, config: Config): ...
            def start(self, ctx): ...
    """
    folder = project(tmp_path, {"nodes/n.py": node})
    snapshot = str(tmp_path / "p.snapshots" / compiled(folder)["snapshot"])
    (folder / "nodes/n.py").write_text("edited meanwhile, and not even Python")

    def check(config: dict[str, Any], type: str = "nodes.n:N") -> dict[str, Any]:
        return ask("check", folder, snapshot=snapshot, nodes=[{"name": "n", "type": type, "config": config}])

    assert check({"level": 9})["ok"]
    for config, words in (
        ({"levle": 2}, "config of node \"n\"['levle']: Config has no such key; its keys: \"level\""),
        ({"level": "two"}, "config of node \"n\"['level'] is 'two', not an integer"),
        ({"level": 10}, "Config refuses it: a level goes up to 9"),
    ):
        answer = check(config)
        assert not answer["ok"] and answer["code"] == "BadRequest" and words in answer["error"], answer
    window = "tatolab.stream:DisplayWindow"
    assert check({"title": "Attic"}, window)["ok"]
    assert 'its keys: "height", "scaling", "title"' in check({"tilte": "Attic"}, window)["error"]
    assert "config of node \"n\"['width'] is -5, not between 1 and 16384" in check({"width": -5}, window)["error"]


def test_catalog(tmp_path: Path) -> None:
    folder = project(
        tmp_path, {"broken.py": "@x\nclass A: ...\n", "scripts/tool.py": "raise SystemExit('not imported')\n"}
    )
    (folder / "gone.py").symlink_to("nowhere")
    answer = ask("catalog", folder)
    assert answer["ok"]
    nodes = {node["type"]: node for node in answer["nodes"]}
    assert nodes["nodes.n:N"]["outputs"] == [{"name": "out", "description": ""}]
    assert nodes["nodes.n:N"]["config_schema"]["additionalProperties"] is False
    window = nodes["tatolab.stream:DisplayWindow"]
    assert window["inputs"] == [{"name": "video", "description": "pictures", "profile": "newest"}]
    assert window["config_schema"]["properties"]["scaling"] == {"enum": ["fit", "fill", "stretch"]}
    # What cannot be read, as here a link to nowhere, costs itself only.
    assert [e["module"] for e in answer["errors"]] == ["broken", "gone"] and "NameError" in answer["errors"][0]["error"]


VERSIONS = ["3.10", "3.11", "3.12", "3.13"]


def interpreter(version: str) -> str | None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_supported_python(tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    folder = project(
        tmp_path,
        {
            "pyproject.toml": "[tool.tatolab.env]\nROOM = 'attic'\n",
            "nodes/n.py": """
                from dataclasses import dataclass
                from tatolab.stream import log, node

                @dataclass
                class Config:
                    level: int | None = None
                    names: list[str] | None = None

                @node(execution="continuous", interval_ms=20)
                class N:
                    @node.output()
                    def out(self): ...
                    def __init__(self, config: Config): self.config = config
                    def process(self, ctx):
                        ctx.outputs.write("out", {"a": 1})
                        print("level", self.config.level)
                        raise ValueError("told")
            """,
            "nodes/r.py": """
                from tatolab.stream import log, node
                @node
                class R:
                    @node.input(delivery_profile="ordered")
                    def bags(self): ...
                    def process(self, ctx):
                        log.info("read", bag=ctx.inputs.read("bags"))
            """,
            "stream.py": """
                from tatolab.stream import stream
                from nodes.n import N
                from nodes.r import R

                @stream
                def s(b):
                    b.connect(b.add(N, config={"level": 3}).output("out"), b.add(R).input("bags"))
            """,
        },
    )
    with running(folder, python=python) as stream:
        assert stream.answer["env"] == {"ROOM": "attic"}
        node, reader = stream.nodes["n"], stream.nodes["r"]
        node.printed("level 3")
        assert reader.expect("log", message="read")["fields"] == {"bag": {"a": 1}}
        error = node.expect("error")
        assert 'raise ValueError("told")' in error["traceback"]
        assert node.stop() == 0 and reader.stop() == 0


@pytest.mark.parametrize("version", ["3.6", "3.8", "3.9", "2.7"])
def test_an_old_python_is_told_so(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    flags = ["-I", "-u"] if version != "2.7" else []
    done = subprocess.run([python, *flags, str(BOOTSTRAP), "compile"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"the project's Python is {version}, tatolab.stream needs 3.10 or newer" in done.stderr


def test_wheel(tmp_path: Path) -> None:
    """The wheel is built and imported without a network or any other package."""
    sys.path.insert(0, str(SOURCE.parent / "backend"))
    try:
        import backend  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    wheel = tmp_path / backend.build_wheel(str(tmp_path))
    assert wheel.name == "tatolab_stream-0.48.0-py3-none-any.whl"
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import tatolab.stream as t; print(t.__version__, t.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"0.48.0 {tmp_path}/site/tatolab/stream/")
    assert os.path.getsize(tmp_path / backend.build_sdist(str(tmp_path))) > 10_000
    editable = backend.build_editable(str(tmp_path))
    assert editable == wheel.name
