#!/usr/bin/env bash
# Make an environment in $VENV (default .venv) with everything jitpy needs; `setup.sh dev` adds what its tests and tools
# need. Safe to run again: it adds only what is missing.
# $PYTHON names the interpreter to make it from; without it the first Python >= 3.11 found is taken.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
TORCH=${TORCH:-torch==2.13.0}

say() { printf '[setup] %s\n' "$*"; }
recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
has_torch() { "$1" -c 'import torch; v = torch.__version__.split("."); assert (int(v[0]), int(v[1])) >= (2, 11)' >/dev/null 2>&1; }

if [ ! -x "$VENV/bin/python" ]; then
    found=
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if command -v "$candidate" >/dev/null 2>&1 && recent "$candidate"; then found=$candidate; break; fi
    done
    if [ -z "$found" ]; then say "no Python >= 3.11 found; set PYTHON=/path/to/python"; exit 1; fi
    options=
    if has_torch "$found"; then options=--system-site-packages; fi  # an installed torch is used, not fetched again
    say "environment $VENV from $("$found" --version) $options"
    "$found" -m venv $options "$VENV"
fi
PY=$VENV/bin/python
if ! command -v "${CXX:-g++}" >/dev/null 2>&1; then say "no C++ compiler (${CXX:-g++}): jitpy will run without native code"; fi
if ! has_torch "$PY"; then
    say "installing $TORCH (once, some minutes)"
    "$PY" -m pip install --quiet "$TORCH"
fi
if [ "${1:-}" = dev ]; then
    say "installing jitpy's development tools"
    "$PY" -m pip install --quiet -e '.[dev]'
else
    say "installing jitpy"
    "$PY" -m pip install --quiet -e .
fi
say "done: $("$PY" -c 'import platform, torch; print("Python", platform.python_version() + ", torch", torch.__version__)')"
