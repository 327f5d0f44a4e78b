#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `make gpu-check` runs on a machine that has a GPU, once gpu_check is built:
#
#   check_all.sh GPU_CHECK PYTHON FOLDER
#
# PYTHON's own jax is used if it has a plugin for CUDA; else FOLDER gets an environment
# with one from PyPI. Says which parts were NOT run; ends with 1 only if one failed, with
# 77 if there is no GPU.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
gpu_check=$1 python=$2 folder=$3
no_gpu=77
failed=() not_run=()

part() {  # part NAME COMMAND...
  local name=$1 code
  shift
  printf '\n=== %s\n' "$name"
  "$@"
  code=$?
  ((code == 0)) || { ((code == no_gpu)) && not_run+=("$name"); } || failed+=("$name")
  return $code
}

# Prints the path of the sanitizer, which toolkits put beside nvcc.
find_sanitizer() {
  command -v compute-sanitizer ||
    PATH="$(dirname "$(command -v nvcc)"):/usr/local/cuda/bin" command -v compute-sanitizer
}

sanitize() {  # sanitize TOOL
  "$sanitizer" --tool "$1" --target-processes all --error-exitcode 3 "$gpu_check" small
}

# Whether an interpreter has all that it takes to build the package and to run it on GPUs.
has_jax() {
  "$1" -c "import jax, nanobind, scikit_build_core, jax_plugins.xla_cuda$cuda" 2>/dev/null
}

# Sets `python` to an interpreter with jax for GPUs, with our package in $folder/site.
prepare_jax() {
  if ! has_jax "$python"; then
    "$python" -m venv "$folder/venv" || return $no_gpu
    python=$folder/venv/bin/python
    "$python" -m pip install -q --retries 1 --timeout 20 -U 'pip>=25.1' &&
      "$python" -m pip install -q --retries 1 "jax[cuda$cuda]>=0.10" --group build ||
      return $no_gpu
  fi
  "$python" -m pip install -q --no-build-isolation --no-deps --no-index --upgrade \
    --target "$folder/site" -C build-dir="$folder/module" \
    -C cmake.define.SMDDP_CUDA=ON .
}

through_jax() {
  PYTHONPATH="$folder/site" "$python" tests/jax_on_gpus.py
}

part 'kernels, and the class that calls them' "$gpu_check" || (($? != no_gpu)) || exit $no_gpu

if sanitizer=$(find_sanitizer); then
  part 'memcheck' sanitize memcheck
  part 'racecheck' sanitize racecheck
else
  not_run+=('memcheck and racecheck: compute-sanitizer was not found')
fi

cuda=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
mkdir -p "$folder"
if part "jax[cuda$cuda], and smddp_jax for it" prepare_jax; then
  part 'through JAX' through_jax
fi

printf '\n'
((${#not_run[@]} == 0)) || printf '*** NOT RUN: %s\n' "${not_run[@]}"
if ((${#failed[@]})); then
  printf '*** FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo 'gpu-check: what was run is right'
