"""Asks the SGLang of the Python that runs this file what it makes of launches. Run by `tuner.installed_engine`.

    python installed_engine_side.py  < questions.jsonl  > answers.jsonl

It stands alone: the standard library and SGLang only, any release from 0.5.9 on. The first line out says
which SGLang this is and under which platform's rules it speaks; then one line out for each line in. SGLang is
imported once, and each launch is judged in a fork, since resolution leaves its marks on the process (variables,
published configuration). No weights are read and no GPU memory is touched: where there are GPUs, what the
driver says of them is read once and repeated in the forks, which cannot ask a driver.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import io
import json
import logging
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

LAUNCH_LIMIT_S = 120.0
_WIDTHS = ("attn_tp_size", "moe_ep_size", "moe_tp_size")
_RANKS = ("tp_rank", "pp_rank", "attn_tp_rank", "attn_dp_rank", "attn_cp_rank", "moe_ep_rank", "moe_tp_rank")


class Launch:
    """One launch on its way through the engine's stages.

    found: what the stages have found out, in the words of the answer.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = list(argv)
        self.server_args: Any = None
        self.found: dict[str, Any] = {"resolved": {}}

    def resolved(self, name: str) -> Any:
        """A field as resolution left it; from 0.5.21 on resolution writes beside the record."""
        with contextlib.suppress(ImportError, AttributeError):
            overrides = importlib.import_module("sglang.srt.arg_groups.overrides")
            return overrides.resolution_result(self.server_args, name)
        return getattr(self.server_args, name)


def parse(launch: Launch) -> None:
    server_args = importlib.import_module("sglang.srt.server_args")
    launch.server_args = server_args.prepare_server_args(launch.argv)


def resolve(launch: Launch) -> None:
    """Older releases resolve while they parse."""
    if hasattr(launch.server_args, "resolve_once"):
        launch.server_args.resolve_once()
    launch.found["resolved"] = _resolved_fields(launch)


def check(launch: Launch) -> None:
    launch.server_args.check_server_args()
    launch.found["resolved"] = _resolved_fields(launch)


def publish(launch: Launch) -> None:
    """The widths of all groups, as the launcher derives them before it starts the ranks."""
    context = _placing_context()
    if context is None:
        _derive_ranks(launch.server_args)
        return
    context.publish(launch.server_args, role="tokenizer")
    parallel = context.get_parallel()
    launch.found["resolved"] |= {
        name.replace("moe_ep_size", "ep_size"): getattr(parallel, name) for name in _WIDTHS if hasattr(parallel, name)
    }


def place(launch: Launch) -> None:
    """Every rank's place in its groups, as each finds it when it starts."""
    context = _placing_context()
    parallel = context.get_parallel()
    ranks = []
    for pp_rank in range(parallel.pp_size):
        for tp_rank in range(parallel.tp_size):
            world_rank = context.spawn_world_rank(launch.server_args, tp_rank=tp_rank, pp_rank=pp_rank)
            placed = context.SpawnRanks(world_rank=world_rank, dp_rank=0, gpu_id=0)
            context.publish(launch.server_args, role="scheduler", ranks=placed)
            ranks.append({name: getattr(context.get_parallel(), name, None) for name in _RANKS})
    launch.found["ranks"] = ranks


Stages = Sequence[tuple[str, Callable[[Launch], None]]]


def stages() -> Stages:
    """What this release can be asked, by the names of the stages in the answers; once SGLang is imported."""
    found = [("parse", parse), ("resolve", resolve), ("check", check)]
    if _placing_context() is not None:
        return [*found, ("publish", publish), ("init", place)]
    return found if _launchers_ranks() is None else [*found, ("publish", publish)]


def _placing_context() -> Any:
    """SGLang's record of groups and places, kept since 0.5.21; None before."""
    with contextlib.suppress(ImportError):
        context = importlib.import_module("sglang.srt.runtime_context")
        return context if hasattr(context, "SpawnRanks") else None
    return None


def _launchers_ranks() -> Any:
    """How the launcher derived a rank's places from 0.5.10 to 0.5.20; None in other releases."""
    engine = importlib.import_module("sglang.srt.entrypoints.engine")
    return getattr(engine, "_compute_parallelism_ranks", None)


def _derive_ranks(server_args: Any) -> None:
    """From 0.5.17 on the ranks are derived from what is published, in 0.5.20 from nothing else."""
    with contextlib.suppress(ImportError, AttributeError):
        publish_args = importlib.import_module("sglang.srt.runtime_context").publish
        publish_args(server_args, role="tokenizer")
    ranks_of = _launchers_ranks()
    takes_args = len(inspect.signature(ranks_of).parameters) > 1
    for rank in range(server_args.tp_size):
        ranks_of(server_args, rank) if takes_args else ranks_of(rank)


def _resolved_fields(launch: Launch) -> dict[str, Any]:
    """Every field that is a plain value, and the CUDA graphs' settings by phase."""
    names = getattr(type(launch.server_args), "__struct_fields__", None) or vars(launch.server_args)
    fields: dict[str, Any] = {}
    for name in names:
        with contextlib.suppress(AttributeError):
            value = launch.resolved(name)
            if value is None or isinstance(value, bool | int | float | str):
                fields[name] = value
    with contextlib.suppress(AttributeError):
        graphs = launch.resolved("cuda_graph_config")
        for phase in ("decode", "prefill"):
            settings = getattr(graphs, phase)
            fields[f"cuda_graph_backend_{phase}"] = str(getattr(settings.backend, "value", settings.backend))
            fields[f"cuda_graph_max_bs_{phase}"] = settings.max_bs
            fields[f"cuda_graph_bs_{phase}"] = None if settings.bs is None else list(settings.bs)
    return fields | _sizes(fields)


def _sizes(fields: dict[str, Any]) -> dict[str, Any]:
    """Attention data parallelism under its name of today: before 0.5.22 it was dp_size and a switch."""
    if "attn_dp_size" in fields or not fields.get("enable_dp_attention"):
        return {}
    return {"attn_dp_size": fields["dp_size"], "dp_size": 1}


def judged(question: dict[str, Any], asked: Stages) -> dict[str, Any]:
    """The answer to one question: how far the launch gets, and what stops it there.

    imported: modules of SGLang's that it had to import on the way.
    """
    known = set(sys.modules)
    os.environ.update(question.get("env") or {})
    launch = Launch(question["argv"])
    refused: dict[str, Any] = {"stage": None, "exception": "", "error": "", "at": ""}
    printed = io.StringIO()
    with _collected_warnings() as warnings, contextlib.redirect_stderr(printed):
        for stage, run in asked:
            try:
                run(launch)
            except SystemExit as stop:
                last = (printed.getvalue().strip().splitlines() or [str(stop)])[-1]
                refused = {
                    "stage": "parse",
                    "exception": f"SystemExit({stop.code})",
                    "error": _after_program(last),
                    "at": _at(stop),
                }
                break
            except Exception as error:  # noqa: BLE001 - whatever the engine raises is the answer
                refused = {
                    "stage": "resolve" if stage == "parse" and _is_resolving(error) else stage,
                    "exception": type(error).__name__,
                    "error": str(error),
                    "at": _at(error),
                }
                break
    imported = sorted(name for name in set(sys.modules) - known if name.startswith("sglang."))
    return {"id": question.get("id"), **refused, **launch.found, "warnings": warnings, "imported": imported}


def _after_program(line: str) -> str:
    """The last line of argparse, without the name of the program."""
    _, colon, text = line.partition(" error: ")
    return text if colon else line


def _is_resolving(error: BaseException) -> bool:
    """Whether a release that resolves while it parses had come to resolution."""
    return any(frame.name == "__post_init__" for frame in traceback.extract_tb(error.__traceback__))


def _at(error: BaseException) -> str:
    """The innermost line of SGLang's own, as `path:line` under sglang/srt."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/sglang/srt/" in frame.filename]
    return f"{own[-1].filename.rpartition('/sglang/srt/')[2]}:{own[-1].lineno}" if own else ""


@contextlib.contextmanager
def _collected_warnings() -> Any:
    """SGLang sets its log handlers anew while it parses, so records are taken where they are made."""
    make, warnings = logging.getLogRecordFactory(), []

    def collect(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if record.levelno >= logging.WARNING:
            warnings.append(record.getMessage())
        return record

    logging.setLogRecordFactory(collect)
    try:
        yield warnings
    finally:
        logging.setLogRecordFactory(make)


def import_engine() -> None:
    """Everything that the stages need, so that a fork has it already."""
    for name in ("server_args", "configs.model_config"):
        importlib.import_module(f"sglang.srt.{name}")
    for name in ("arg_groups.pipeline", "arg_groups.overrides", "runtime_context"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"sglang.srt.{name}")
    if not hasattr(sys.modules.get("sglang.srt.runtime_context"), "SpawnRanks"):
        importlib.import_module("sglang.srt.entrypoints.engine")


def repeat_gpus(properties: Sequence[Any], memory_mib: float) -> None:
    """Answers torch's questions about the GPUs from what was read before.

    properties: what `torch.cuda.get_device_properties` says of each. memory_mib: what SGLang takes for a card's.
    """
    torch: Any = importlib.import_module("torch")

    def of(device: Any = None) -> Any:
        index = getattr(device, "index", device)
        return properties[index if isinstance(index, int) else 0]

    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: len(properties)
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = of
    torch.cuda.get_device_name = lambda device=None: of(device).name
    torch.cuda.get_device_capability = lambda device=None: (of(device).major, of(device).minor)
    torch.cuda.mem_get_info = lambda device=None: (of(device).total_memory, of(device).total_memory)
    common: Any = importlib.import_module("sglang.srt.utils.common")
    common.get_nvgpu_memory_capacity = lambda: memory_mib


def remember_gpus() -> None:
    """Reads what the driver says of the GPUs, where there are any, for the forks to come."""
    torch: Any = importlib.import_module("torch")

    if torch.version.cuda is not None and torch.cuda.is_available():
        properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        common = importlib.import_module("sglang.srt.utils.common")
        repeat_gpus(properties, common.get_nvgpu_memory_capacity())


def platform() -> dict[str, Any]:
    """What this SGLang is, and whose rules it applies: `cuda sm_90`, `rocm`, or `cpu`."""
    torch: Any = importlib.import_module("torch")

    version = importlib.import_module("sglang").__version__
    if not torch.cuda.is_available():
        return {"version": version, "platform": "cpu", "gpu": "", "memory_mib": 0}
    card = torch.cuda.get_device_properties(0)
    kind = "rocm" if torch.version.cuda is None else f"cuda sm_{card.major}{card.minor}"
    return {"version": version, "platform": kind, "gpu": card.name, "memory_mib": card.total_memory >> 20}


def in_a_fork(work: Callable[[], dict[str, Any]], limit_s: float = LAUNCH_LIMIT_S) -> dict[str, Any]:
    """What `work` returns in a process of its own; `{"died": how}` where it ends otherwise."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        with os.fdopen(write_end, "w") as pipe:
            pipe.write(json.dumps(work(), default=str))
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = _read_within(pipe, limit_s)
    if said is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if said is None:
        return {"died": f"no answer within {limit_s:g} s"}
    try:
        answer: dict[str, Any] = json.loads(said)
    except ValueError:
        return {"died": f"exit code {os.waitstatus_to_exitcode(status)}"}
    return answer


def _read_within(pipe: Any, limit_s: float) -> bytes | None:
    """All that comes until the other end closes; None where nothing comes for `limit_s`."""
    said = b""
    while True:
        if not select.select([pipe], [], [], limit_s)[0]:
            return None
        part = os.read(pipe.fileno(), 1 << 16)
        if not part:
            return said
        said += part


def serve(hello: Callable[[], dict[str, Any]], asked_stages: Callable[[], Stages] = stages) -> None:
    """Answers line by line until its input ends.

    hello: imports the engine and says what it is. asked_stages: called after it.
    """
    # SGLang and its libraries print: stdout is for answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        introduction = hello()
        asked = asked_stages()
        say({**introduction, "stages": [name for name, _ in asked]})
    except Exception as error:  # noqa: BLE001 - a package that is broken in any way is told of
        say({"missing": f"{type(error).__name__}: {error}"})
        return
    for line in sys.stdin:
        question = json.loads(line)
        answer = in_a_fork(functools.partial(judged, question, asked))
        imported = answer.pop("imported", ())
        say({"id": question.get("id"), **answer})
        _import_for_the_next(imported)


def _import_for_the_next(names: Iterable[str]) -> None:
    """What one fork had to import the following ones have already: it is most of a launch's time."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # Spares the forks the copying of pages that a collection would touch.
    gc.freeze()


def _hello() -> dict[str, Any]:
    torch: Any = importlib.import_module("torch")

    if not torch.cuda.is_available():
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    import_engine()
    remember_gpus()
    return platform()


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    serve(_hello)
