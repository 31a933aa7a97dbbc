"""The program the runtime starts with a project's interpreter.

    .venv/bin/python -I -u bootstrap.py compile|check|catalog|node

It makes `import tatolab.stream` mean the package beside it, whatever the
project has installed, then runs the mode. `multiprocessing` runs this file
again in each child it spawns, under another `__name__`: the children get the
same package and the same snapshot, and none of the mode.

Written for any Python 3, so that an old interpreter is told so.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LENT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))


def install():
    """Install the finders for the lent package, and for a snapshot if one is set."""
    from importlib.util import module_from_spec, spec_from_file_location

    # By path: its name can only be imported once its finder is there.
    name = "tatolab.stream._lend.modules"
    spec = spec_from_file_location(name, os.path.join(HERE, "modules.py"))
    assert spec is not None and spec.loader is not None
    modules = module_from_spec(spec)
    spec.loader.exec_module(modules)
    modules.lend(LENT)
    sys.modules[name] = modules
    if __name__ != "__main__" and os.environ.get(modules.SNAPSHOT):
        modules.use_snapshot(os.environ[modules.SNAPSHOT])


def main(arguments):  # pyright: ignore
    """Run the mode that the command line names."""
    mode = arguments[0] if arguments else ""  # pyright: ignore
    if mode == "node":
        from tatolab.stream._host.main import main as run
    elif mode in ("compile", "check", "catalog"):
        from tatolab.stream._compile.main import main as run
    else:
        sys.exit("usage: bootstrap.py compile|check|catalog|node")
    run(mode)


if sys.version_info < (3, 10):
    sys.exit(
        "the project's Python is %d.%d, tatolab.stream needs 3.10 or newer: "
        "write 3.12 into .python-version and make the .venv again" % sys.version_info[:2]
    )
install()
if __name__ == "__main__":
    main(sys.argv[1:])
