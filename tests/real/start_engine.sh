#!/usr/bin/env bash
# Becomes one engine's server on 127.0.0.1, in the foreground; it ends with SIGTERM to its process group.
#   start_engine.sh vllm|sglang aggregated|prefill|decode PORT SIDE_PORT [option of the engine ...]
# SIDE_PORT: vLLM's NIXL side channel, one for each server; SGLang's bootstrap port, the prefill server's, told to both.
# All compute in float32, so that greedy answers can be compared, with THREADS threads (1).
set -euo pipefail
. "$(dirname "$0")/places.sh"
[ $# -ge 4 ] || { sed -n '3,5p' "$0" >&2; exit 2; }
engine=$1 role=$2 port=$3 side_port=$4
shift 4

NAME=smollm2-135m
CONTEXT=2048

export OMP_NUM_THREADS=${THREADS:-1} HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
# NIXL's transport, over loopback only.
export UCX_TLS=tcp,self UCX_NET_DEVICES=lo NIXL_LOG_LEVEL=WARN NIXL_PTHR_DELAY_US=200 NIXL_POLL_PAUSE_US=1000
venv=$TANDEM_REAL_VENVS/$engine

start_vllm() {
  export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_HOST_IP=127.0.0.1
  export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind
  export VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 VLLM_NIXL_SIDE_CHANNEL_PORT=$side_port
  local preload=$venv/lib/libiomp5.so library
  for library in /usr/lib/*/libtcmalloc_minimal.so.4; do
    [ -e "$library" ] && preload=$library:$preload
  done
  export LD_PRELOAD=$preload
  local pair=()
  if [ "$role" != aggregated ]; then
    # NIXL gives both servers the same part; who prefills, the gateway says.
    pair=(--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_device":"cpu","kv_connector_extra_config":{"num_threads":0,"kv_lease_duration":'"${LEASE_S:-30}"'}}')
  fi
  # Attention on the CPU takes blocks of multiples of 32 tokens only.
  exec "$venv/bin/python" "$venv/bin/vllm" serve "$TANDEM_REAL_MODEL" --served-model-name "$NAME" \
    --host 127.0.0.1 --port "$port" --max-model-len "$CONTEXT" --dtype float32 --enforce-eager --block-size 32 \
    --enable-prompt-tokens-details "${pair[@]}" "$@"
}

start_sglang() {
  export SGLANG_USE_CPU_ENGINE=1 SGLANG_HOST_IP=127.0.0.1 HOST_IP=127.0.0.1 MOONCAKE_PROTOCOL=tcp MC_FORCE_TCP=1
  # Its own kernels for the CPU are on no registry: plain torch stands in for them.
  export PYTHONPATH=$here/stubs
  local pair=()
  if [ "$role" != aggregated ]; then
    pair=(--disaggregation-mode "$role" --disaggregation-transfer-backend mooncake
      --disaggregation-bootstrap-port "$side_port" --max-running-requests 16)
  fi
  if [ "$role" = decode ]; then
    # Its default keeps a copy in host memory pinned by CUDA.
    pair+=(--disaggregation-decode-retraction-backup cpu_tensor)
  fi
  exec "$venv/bin/python" -m sglang.launch_server --model-path "$TANDEM_REAL_MODEL" --served-model-name "$NAME" \
    --host 127.0.0.1 --port "$port" --context-length "$CONTEXT" --dtype float32 --device cpu \
    --attention-backend torch_native --sampling-backend pytorch --disable-cuda-graph --disable-overlap-schedule \
    --max-total-tokens 8192 --mem-fraction-static 0.3 --enable-metrics "${pair[@]}" "$@"
}

"start_$engine" "$@"
