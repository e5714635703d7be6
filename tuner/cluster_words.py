"""What `--cluster` takes: a notation such as 2x8xh200, or a JSON file that describes the GPUs or what was measured."""

from __future__ import annotations

from pathlib import Path

from search_spaces.catalogue import parse_cluster
from search_spaces.hardware import Cluster
from tuner.cluster_file import read_cluster


def cluster_of(word: str) -> Cluster:
    """A word that ends with .json or holds a slash is a file in the form of `cluster_file`. Raises UserError."""
    if not (word.endswith(".json") or "/" in word):
        return parse_cluster(word)
    return read_cluster(Path(word).expanduser(), word)
