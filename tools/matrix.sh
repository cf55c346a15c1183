#!/usr/bin/env bash
# Run the tests on every CPython from 3.11 on that is found: on PATH, and under pyenv. Each gets an environment of its
# own in .matrix/VERSION (made by tools/setup.sh; kept for the next time).
# $PYTHONS names interpreters instead of the search; $ENVIRONMENTS names ready environments; $TESTS what to run.
set -uo pipefail
cd "$(dirname "$0")/.."
TESTS=${TESTS:-tests}
JOBS=${JOBS:-$(nproc 2>/dev/null || echo 2)}

version() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null; }
supported() { "$1" -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 14)))' >/dev/null 2>&1; }

environments=()
if [ -n "${ENVIRONMENTS:-}" ]; then
    read -r -a environments <<<"$ENVIRONMENTS"
else
    if [ -n "${PYTHONS:-}" ]; then
        read -r -a candidates <<<"$PYTHONS"
    else
        candidates=(python3.11 python3.12 python3.13 python3.14 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python python3)
    fi
    seen=" "
    for candidate in "${candidates[@]}"; do
        found=$(command -v "$candidate") && supported "$found" || continue
        name=$(version "$found")
        minor=${name%.*}
        case "$seen" in *" $minor "*) continue ;; esac
        seen="$seen$minor "
        VENV=.matrix/$name PYTHON=$found bash tools/setup.sh dev || { echo "[matrix] $name: setup failed"; exit 1; }
        environments+=(".matrix/$name")
    done
fi

status=0
summary=""
for environment in "${environments[@]}"; do
    python=$environment/bin/python
    echo "[matrix] Python $(version "$python") in $environment"
    "$python" -m jitpy build
    log=$(mktemp)
    # shellcheck disable=SC2086
    if "$python" -m pytest -n "$JOBS" --dist loadfile $TESTS 2>&1 | tee "$log"; then result=passed; else result=FAILED; status=1; fi
    summary="$summary\n[matrix] $(version "$python"): $result: $(tail -1 "$log")"
    rm -f "$log"
done
printf '%b\n' "$summary"
exit $status
