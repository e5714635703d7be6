"""SGLang's own benchmark, `sglang.benchmark.serving`, once `sglang.bench_serving`: where it is, how it is called.

Read from the wheels of 0.5.9 to 0.5.23: all have the options that are used here, `--cache-report` from 0.5.14 on.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from search_spaces.errors import UserError
from tuner.engine_args import skips_tokenizer
from tuner.load_plan import Load

OPTION = "--load-generator sglang"
FIND_LIMIT_S = 60.0
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")
# SGLang itself is not imported, which would take a while.
_QUESTION = """
import importlib.util, pathlib
spec = importlib.util.find_spec("sglang")
for folder in (spec and spec.submodule_search_locations) or ():
    for module, name in (("sglang.benchmark.serving", "benchmark/serving.py"), ("sglang.bench_serving", "bench_serving.py")):
        path = pathlib.Path(folder, name)
        if path.is_file():
            print(module, "--cache-report" in path.read_text(encoding="utf-8"))
            raise SystemExit
"""  # noqa: E501


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangBenchmark:
    """python: the words that start its Python. tokenizer: a folder or hub id. reports_cache: whether it can say how
    many prompt tokens came from the prefix cache.
    """

    python: tuple[str, ...]
    module: str
    tokenizer: str
    reports_cache: bool

    def words(self, base_url: str, load: Load, output: Path) -> tuple[str, ...]:
        """The prompts are random token ids, the same ones at every layout; answers have their exact length."""
        return (
            *(*self.python, "-m", self.module),
            *("--backend", "sglang", "--base-url", base_url),
            *("--model", self.tokenizer, "--tokenizer", self.tokenizer),
            *("--dataset-name", "random-ids", "--tokenize-prompt", "--random-range-ratio", "1.0"),
            *("--random-input-len", str(load.input_tokens), "--random-output-len", str(load.output_tokens)),
            *("--num-prompts", str(load.num_requests), "--max-concurrency", str(load.concurrency)),
            *("--seed", str(load.seed % 2**32), "--warmup-requests", "0"),
            *("--output-details", "--output-file", str(output)),
            *(("--cache-report",) if self.reports_cache else ()),
        )


def found_benchmark(
    program: Sequence[str], tokenizer: str, engine_args: Sequence[str] = (), *, is_simulated: bool = False
) -> SglangBenchmark:
    """The benchmark beside the SGLang that `program` starts. Nothing is served, nothing of SGLang imported.

    tokenizer: what a server is told to load, unless `engine_args` names another one; empty for a server without.
    is_simulated: whether the server is. Raises UserError where it cannot be used.
    """
    if is_simulated:
        raise UserError(f"{OPTION} needs the real engine: a simulated server's seconds are none of the wall's")
    python = _python_of(program)
    tokenizer = _named("--tokenizer-path", engine_args) or tokenizer
    if not tokenizer or skips_tokenizer(engine_args):
        raise UserError(
            f"{OPTION}: SGLang's benchmark knows tokens by their text, which a server without tokenizer "
            "(--skip-tokenizer-init) does not send"
        )
    if fault := _tokenizer_fault(tokenizer):
        raise UserError(f"{OPTION}: {fault}")
    try:
        asked = subprocess.run(
            [*python, "-c", _QUESTION], capture_output=True, text=True, timeout=FIND_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"{OPTION}: {python[-1]} cannot be asked for SGLang's benchmark: {error}") from None
    answer = asked.stdout.split()
    if len(answer) != 2:
        raise UserError(
            f"{OPTION}: the SGLang of {python[-1]} has neither sglang.benchmark.serving nor sglang.bench_serving"
        )
    return SglangBenchmark(python=python, module=answer[0], tokenizer=tokenizer, reports_cache=answer[1] == "True")


def _python_of(program: Sequence[str]) -> tuple[str, ...]:
    """Up to `-m`: a Python of this machine, `env` with variables before it. Raises UserError."""
    words = tuple(program[: program.index("-m")]) if "-m" in program else ()
    rest = list(words)
    if rest and Path(rest[0]).name == "env":
        rest = rest[1:]
        while rest and _VARIABLE.fullmatch(rest[0]):
            rest = rest[1:]
    if not rest or not _PYTHON.fullmatch(Path(rest[0]).name) or shutil.which(rest[0]) is None:
        raise UserError(
            f"{OPTION} needs an engine that is started by a Python of this machine, as `PYTHON -m sglang.launch_server`"
        )
    return words


def _named(option: str, words: Sequence[str]) -> str:
    """The value of `option`, the last one; empty without."""
    found = ""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option:
            found = value if equals else " ".join(words[place + 1 : place + 2])
    return found


def _tokenizer_fault(tokenizer: str) -> str:
    """Why there is none; empty where there is, or where only the hub knows."""
    path = Path(tokenizer)
    if not path.exists():
        is_path = tokenizer.startswith(("/", ".")) or tokenizer.count("/") > 1
        return f"there is no tokenizer {tokenizer} on this machine" if is_path else ""
    if path.is_dir() and not any(True for name in _TOKENIZER_FILES for _ in path.glob(name)):
        return f"{tokenizer} holds no tokenizer, which SGLang's benchmark needs"
    return ""
