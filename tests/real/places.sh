# Where the real engines and their model are kept; sourced by the other scripts. See README.md.
#   TANDEM_REAL_HOME    everything below, unless named by itself    default: .real in the checkout
#   TANDEM_REAL_VENVS   the folders vllm/ and sglang/, one virtual environment each
#   TANDEM_REAL_MODEL   the model's folder
#   TANDEM_REAL_LOGS    what engines and gateways print
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
export TANDEM_REAL_HOME=${TANDEM_REAL_HOME:-$root/.real}
export TANDEM_REAL_VENVS=${TANDEM_REAL_VENVS:-$TANDEM_REAL_HOME/venvs}
export TANDEM_REAL_MODEL=${TANDEM_REAL_MODEL:-$TANDEM_REAL_HOME/models/smollm2-135m-instruct}
export TANDEM_REAL_LOGS=${TANDEM_REAL_LOGS:-$TANDEM_REAL_HOME/logs}
