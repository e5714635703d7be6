"""SGLang's own benchmark in one process, as often as asked: it takes seconds to be imported.

    ENGINE_PYTHON benchmark_side.py

Reads the words of one run a line, as a JSON list, and writes a line when the run is over; what the benchmark prints
goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import sys

from sglang.benchmark import serving

for line in sys.stdin:
    sys.argv = ["serving", *json.loads(line)]
    with contextlib.redirect_stdout(sys.stderr):
        serving.cli_main()
    sys.stdout.write("done\n")
    sys.stdout.flush()
