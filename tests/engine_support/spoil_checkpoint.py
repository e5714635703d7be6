"""Copies the tiny checkpoint with one expert of one layer silenced: what a layout that loses an expert computes.

Run by the engine's Python: ENGINE_PYTHON spoil_checkpoint.py FROM TO
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

SILENCED = "layers.1.mlp.experts.3.down_proj"


def main(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder)
    weights = load_file(source / "model.safetensors")
    silenced = [name for name in weights if SILENCED in name]
    if len(silenced) != 1:
        raise SystemExit(f"{len(silenced)} weights are named like {SILENCED}")
    weights[silenced[0]].zero_()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
