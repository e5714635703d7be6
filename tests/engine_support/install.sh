#!/usr/bin/env bash
# Makes a virtual environment with the real SGLang, for a machine with no GPU:
#
#     tests/engine_support/install.sh FOLDER
#     LAYOUT_TUNE_ENGINE_PYTHON=FOLDER/bin/python python -m pytest -m engine
#
# A CPU build of torch is taken where pip can see one (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL); otherwise the
# default build, which brings several GB of CUDA libraries that nothing uses.
set -euo pipefail

folder=${1:?usage: install.sh FOLDER}
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

python3 -m venv "$folder"
install() { "$folder/bin/pip" install -qq --constraint "$project/constraints-engine.txt" "$@"; }

install torch

# The `engine` extra without the project itself, whose own dependencies the engine doesn't share.
mapfile -t light_dependencies < <("$folder/bin/python" - "$project/pyproject.toml" <<'PYTHON'
import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"]["engine"], sep="\n")
PYTHON
)
install "${light_dependencies[@]}"

# Both ask for packages that need a GPU.
install --no-deps sglang xgrammar
