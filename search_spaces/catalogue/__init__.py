"""Models and GPUs that are known by name, each number with its source."""

from search_spaces.catalogue.cluster_notation import parse_cluster
from search_spaces.catalogue.lookup import (
    aliases,
    gpu_keys,
    hub_id,
    load_gpu,
    load_model,
    model_files,
    model_names,
)

__all__ = [
    "aliases",
    "gpu_keys",
    "hub_id",
    "load_gpu",
    "load_model",
    "model_files",
    "model_names",
    "parse_cluster",
]
