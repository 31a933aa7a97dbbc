from __future__ import annotations

import sys
from pathlib import Path

# The tests run against the sources, whatever is installed.
sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src"), str(Path(__file__).resolve().parent)]
