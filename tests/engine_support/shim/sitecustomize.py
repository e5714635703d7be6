"""Python imports this module by itself at start, in every process whose PYTHONPATH names this folder.

SGLang starts its schedulers as fresh interpreters, so what it needs on a CPU has to be in place before any
of its modules is imported. Processes that don't ask for SGLang's CPU engine are left as they are.
"""

import os

if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
    import sglang_on_cpu

    sglang_on_cpu.install()
