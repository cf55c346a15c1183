#!/usr/bin/env bash
# stage.sh NAME COMMAND...: run a command, then say how many seconds it took.
set -euo pipefail
name=$1
shift
SECONDS=0
status=0
"$@" || status=$?
if [ "$status" = 0 ]; then outcome=""; else outcome=" (failed)"; fi
echo "[stage] $name: $SECONDS s$outcome"
exit "$status"
