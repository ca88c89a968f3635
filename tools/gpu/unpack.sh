# Sourced on the GPU machine, from anywhere: installs what tools/gpu/pack made beside the checkout's root, offline, into
# a folder of its own, and says where things are. Nothing of the machine's Python changes.
#
#   . tools/gpu/unpack.sh [FOLDER]      FOLDER: .gpu by default
#
# Sets PYTHONPATH, DSPLAN and DSPLAN_BINARY (the executable), DSPLAN_DATA, TORCH_EXTENSIONS_DIR, the architecture that
# extensions are compiled for (9.0 unless one is named), and the compiler's and loader's paths to the packed libaio.
# Does nothing twice. A caller's `set -e` sees a failure.

dsplan_unpack() {
  local root folder site
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) || return 1
  folder=${1:-$root/.gpu}
  site=${DSPLAN_SITE:-/tmp/dsplan-site}
  if [ ! -d "$folder/wheels" ]; then
    echo "unpack: no $folder/wheels: run tools/gpu/pack first" >&2
    return 1
  fi
  if [ ! -e "$site/.complete" ]; then
    rm -rf "$site"
    "${PYTHON:-python3}" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$site" \
      "$folder"/wheels/*.whl || return 1
    touch "$site/.complete"
  fi
  case ":${PYTHONPATH:-}:" in
    *":$site:"*) return 0 ;;
  esac
  export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
  export DSPLAN_BINARY="$folder/dsplan" DSPLAN="$folder/dsplan"
  chmod +x "$DSPLAN" 2>/dev/null || true
  export DSPLAN_DATA="${DSPLAN_DATA:-$root}"
  if [ -d "$folder/aio" ]; then
    export CPATH="$folder/aio${CPATH:+:$CPATH}" LD_LIBRARY_PATH="$folder/aio${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export LIBRARY_PATH="$folder/aio:/usr/local/cuda/lib64/stubs${LIBRARY_PATH:+:$LIBRARY_PATH}"
  fi
  export TORCH_EXTENSIONS_DIR="${TORCH_EXTENSIONS_DIR:-/tmp/dsplan-extensions}"
  export TORCH_CUDA_ARCH_LIST="${TORCH_CUDA_ARCH_LIST:-9.0}"
}
dsplan_unpack "$@"
