"""The product's questions to a release older than the environment it runs in, under the facts of a named GPU.

    PYTHONPATH=UNPACKED_WHEEL:shim python old_release_side.py INSTALLED_ENGINE_SIDE.py '{"name": ..., "sm": ...}'

Argument stages and every rank's place only: model classes of old releases need the packages of their time.
"""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

from read_parser import let_old_releases_register
from sglang_on_cpu import gpus
from sglang_on_cpu.absent import GPU_PACKAGES, PACKAGES, AbsentPackages

_ASKED_FOR_TYPES = frozenset({"nixl_ep"})
"""Packages that some release wants a value of while it is imported; missing, they are done without."""


def let_kernels_be_absent() -> None:
    """Old releases describe the shapes of sgl_kernel's operators while they are imported, installed or not."""
    import torch  # noqa: PLC0415 - slow, and only there where SGLang is

    register = torch.library.register_fake

    def register_fake(op: Any, func: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        if str(op).startswith("sgl_kernel::"):
            return func if func is not None else lambda kept: kept
        return register(op, func, **options)

    torch.library.register_fake = register_fake


def place(launch: Any) -> None:
    """Each rank's place in the expert groups, as the launcher derives it before it starts the rank."""
    from sglang.srt.entrypoints import engine  # noqa: PLC0415

    if _publish_configuration(launch.server_args):
        return
    ranks_of = getattr(engine, "_compute_parallelism_ranks", _places_of_0_5_9)
    first = (launch.server_args,) if "server_args" in inspect.signature(ranks_of).parameters else ()
    for rank in range(launch.server_args.tp_size):
        ranks_of(*first, rank)


def _places_of_0_5_9(server_args: Any, tp_rank: int) -> int:
    """The expression inside the launcher's loop (0.5.9 entrypoints/engine.py:942)."""
    attn_dp_size = server_args.dp_size if server_args.enable_dp_attention else 1
    attn_tp_size = server_args.tp_size // attn_dp_size // server_args.attn_cp_size
    _ = tp_rank // attn_tp_size % server_args.attn_cp_size
    moe_dp = server_args.tp_size // server_args.moe_dp_size
    place: int = tp_rank % moe_dp // (moe_dp // server_args.ep_size)
    return place


def _publish_configuration(server_args: Any) -> bool:
    """Whether that alone settles the places, as it does since 0.5.21."""
    try:
        from sglang.srt import runtime_context  # noqa: PLC0415
    except ImportError:
        return False
    if hasattr(runtime_context, "publish"):
        runtime_context.publish(server_args, role="tokenizer")
    return hasattr(runtime_context, "SpawnRanks")


def product(path: str) -> ModuleType:
    spec = spec_from_file_location("installed_engine_side", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(path: str, facts: str) -> None:
    warnings.filterwarnings("ignore")
    side = product(path)
    card = gpus.properties(**json.loads(facts))

    def hello() -> dict[str, str]:
        let_old_releases_register()
        let_kernels_be_absent()
        gpus.install(card)
        sys.meta_path.append(AbsentPackages(PACKAGES | GPU_PACKAGES - _ASKED_FOR_TYPES))
        side.import_engine()
        side.repeat_gpus([card] * 8, float(card.total_memory >> 20))
        return {"platform": f"cuda sm_{card.major}{card.minor}", "gpu": card.name}

    asked = [("parse", side.parse), ("resolve", side.resolve), ("check", side.check), ("publish", place)]
    side.serve(hello, lambda: asked)


if __name__ == "__main__":
    main(*sys.argv[1:])
