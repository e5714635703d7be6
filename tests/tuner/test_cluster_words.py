from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from search_spaces.catalogue import load_gpu, parse_cluster
from search_spaces.errors import UserError
from tuner.cluster_words import cluster_of

GPU = {**asdict(load_gpu("h200")), "key": "h200-half", "memory_bytes": load_gpu("h200").memory_bytes // 2}


def written(folder: Path, content: Any) -> str:
    path = folder / "cluster.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_a_notation_is_read_as_ever() -> None:
    assert cluster_of("2x8xh200") == parse_cluster("2x8xh200")


def test_a_file_may_name_a_gpu_of_the_catalogue(tmp_path: Path) -> None:
    assert cluster_of(written(tmp_path, {"gpu": "H200", "gpus_per_node": 8, "num_nodes": 2})) == cluster_of("2x8xh200")


def test_a_file_may_describe_its_gpu(tmp_path: Path) -> None:
    cluster = cluster_of(written(tmp_path, {"gpu": GPU, "gpus_per_node": 4}))
    assert (cluster.name, cluster.num_gpus) == ("4xh200-half", 4)
    assert cluster.gpu.memory_bytes == load_gpu("h200").memory_bytes // 2
    assert cluster.gpu.link is load_gpu("h200").link


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "not a JSON object"),
        ({"gpu": "h200"}, "gpus_per_node is a count"),
        ({"gpu": "h200", "gpus_per_node": True}, "gpus_per_node is a count"),
        ({"gpu": "h200", "gpus_per_node": 512}, "at most 256 GPUs"),
        ({"gpu": "h200", "gpus_per_node": 8, "nodes": 2}, "did you mean num_nodes"),
        ({"gpu": 3, "gpus_per_node": 8}, "gpu is a name"),
        ({"gpu": "h2", "gpus_per_node": 8}, "unknown GPU"),
        ({"gpu": {**GPU, "link": "rope"}, "gpus_per_node": 8}, "link is one of"),
        ({"gpu": {**GPU, "sm": "90"}, "gpus_per_node": 8}, "sm is a count"),
        ({"gpu": {**GPU, "bf16_flop_per_s": None}, "gpus_per_node": 8}, "bf16_flop_per_s is a number"),
    ],
)
def test_what_a_file_lacks_is_said_in_one_line(content: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as refused:
        cluster_of(written(tmp_path, content))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_told_with_the_notation() -> None:
    with pytest.raises(UserError, match="no such file; a cluster is also written"):
        cluster_of("./none.json")
