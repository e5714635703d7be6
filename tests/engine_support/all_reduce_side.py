"""Whether SGLang's own code would take its custom all-reduce, asked for groups of GPUs that don't exist.

    python all_reduce_side.py < CASES

CASES: a JSON list of `{"gpu": {"name", "sm", "memory_mib"}, "num_ranks", "nvlink", "peers", "one_node"}`, all of one
GPU. Answers a JSON list of booleans. Run by the Python that has SGLang, with the shim on its PYTHONPATH. What the
engine would ask of driver and peers is answered from the case; what it makes of the answers is its own.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import sglang_on_cpu
from sglang_on_cpu import gpus

COMMUNICATORS = "sglang.srt.distributed.device_communicators"


def main() -> None:
    cases = json.load(sys.stdin)
    card = gpus.properties(**cases[0]["gpu"])
    sglang_on_cpu.install_with_gpus(card)
    torch = importlib.import_module("torch")
    custom = importlib.import_module(f"{COMMUNICATORS}.custom_all_reduce")
    second = importlib.import_module(f"{COMMUNICATORS}.custom_all_reduce_v2")
    utils = importlib.import_module(f"{COMMUNICATORS}.custom_all_reduce_utils")
    dist = torch.distributed
    dist.get_backend = lambda *_, **__: "gloo"
    dist.get_rank = lambda *_, **__: 0
    dist.all_gather = lambda *_, **__: None
    # Settled at import, from the driver.
    custom._is_cuda = True

    def is_taken(case: dict[str, Any]) -> bool:
        ranks = case["num_ranks"]
        dist.get_world_size = lambda *_, **__: ranks
        for module in (utils, second):
            module.in_the_same_node_as = lambda *_, **__: [case["one_node"]] * ranks
        utils.is_full_nvlink = lambda *_: case["nvlink"]
        utils.can_p2p = lambda *_: case["peers"]
        second.is_one_nvlink_clique = lambda *_: False
        device = torch.device("cuda:0")
        if custom.dispatch_custom_allreduce(group=None, device=device) is second.CustomAllReduceV2:
            return True
        answer = utils.can_use_custom_all_reduce_with_nvlink(
            group=None,
            device=device,
            supported_world_size=custom.CustomAllreduce._SUPPORTED_WORLD_SIZES,
            cls_name="CustomAllreduce",
        )
        return answer is not None

    json.dump([is_taken(case) for case in cases], sys.stdout)


main()
