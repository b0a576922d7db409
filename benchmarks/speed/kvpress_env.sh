#!/usr/bin/env bash
# Creates the environment that kvpress_side.py runs in: bash benchmarks/speed/kvpress_env.sh DIR
#
# kvpress needs transformers < 5.3 and foveate needs >= 5.4, hence an environment of its own.
# torch comes first and pinned, so that both sides of the comparison run the same build of it.
set -euo pipefail

if [ $# -ne 1 ]; then
    echo "usage: bash benchmarks/speed/kvpress_env.sh DIR   (PYTHON=... chooses the interpreter)" >&2
    exit 2
fi

torch=torch==2.13.0
"${PYTHON:-python3}" -m venv "$1"
"$1/bin/python" -m pip install --quiet "$torch"
"$1/bin/python" -m pip install --quiet "$torch" kvpress==0.5.5 transformers==5.2.0
HF_HUB_OFFLINE=1 "$1/bin/python" - <<'PYTHON'
from importlib.metadata import version

import kvpress  # noqa: F401

print(*(f"{name} {version(name)}" for name in ("kvpress", "transformers", "torch")), sep=", ")
PYTHON
