"""How many GPUs of a node a server is let to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from search_spaces.errors import MalformedError
from search_spaces.hardware import Cluster

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """said: how it was said."""

    num_gpus: int
    said: str

    def of(self, cluster: Cluster) -> Cluster:
        """Raises MalformedError where nothing is left of it."""
        if cluster.gpu.is_cpu or self.num_gpus >= cluster.gpus_per_node:
            return cluster
        if self.num_gpus < 1:
            raise MalformedError(f"{self.said} leaves the server no GPU")
        return replace(cluster, gpus_per_node=self.num_gpus)


def visible_in(env: Mapping[str, str]) -> Visible | None:
    """As a server's environment says; None where it does not."""
    for name in _VARIABLES:
        value = env.get(name)
        if value is None or value.strip().lower() == "all":
            continue
        listed = [each.strip() for each in value.split(",")]
        # From the first number below zero on, none is seen.
        seen = next((i for i, each in enumerate(listed) if each.startswith("-") or each in {"", "none", "void"}), None)
        return Visible(num_gpus=len(listed) if seen is None else seen, said=f"{name}={value}")
    return None
