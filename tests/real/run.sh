#!/usr/bin/env bash
# Runs the gateway against real engines, one set-up after another. See README.md.
#   run.sh [SETUP ...] [option of pytest ...]     run.sh vllm-pair -k kv
# Set-ups: vllm vllm-completions vllm-pair vllm-pair-completions sglang sglang-pair; by default those of the engines
# that are installed.
set -euo pipefail
. "$(dirname "$0")/places.sh"

setups=()
while [ $# -gt 0 ] && [[ $1 != -* ]]; do
  setups+=("$1")
  shift
done
if [ ${#setups[@]} = 0 ]; then
  [ -x "$TANDEM_REAL_VENVS/vllm/bin/python" ] && setups+=(vllm vllm-completions vllm-pair vllm-pair-completions)
  [ -x "$TANDEM_REAL_VENVS/sglang/bin/python" ] && setups+=(sglang sglang-pair)
fi
if [ ${#setups[@]} = 0 ] || [ ! -f "$TANDEM_REAL_MODEL/config.json" ]; then
  echo "run.sh: no engine or no model in $TANDEM_REAL_HOME; install them with tests/real/install.sh" >&2
  exit 1
fi

cd "$root"
export TANDEM_REAL=1 TANDEM_REAL_SETUPS="${setups[*]}"
exec python -m pytest tests/real -p no:cacheprovider --durations=0 --durations-min=5 -vv "$@"
