#!/bin/sh
# The native tests under the sanitizers: sanitize.sh short|memory|threads PYTHON [arguments of pytest]
# All of native/ is checked, with those levels of native/isa that this machine can run. The short form has the
# scalar kernels, for bad addresses alone (with checks for undefined behaviour they take a compiler minutes),
# and leaves the threads to theirs. KVASIR_LEVELS: other levels than all. PYTHON's environment needs the packages of the build and of the tests;
# gcc alone is provided for.
set -eu
form=$1 python=$2 here=$(cd "$(dirname "$0")" && pwd)
shift 2
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

has() { grep -qw "$1" /proc/cpuinfo; }
levels=${KVASIR_LEVELS:-scalar}
if [ "$form" != short ] && [ -z "${KVASIR_LEVELS:-}" ]; then
  if has avx2; then levels="$levels;avx2;avx2_vnni_emulated"; fi
  if has avx_vnni; then levels="$levels;avx2_vnni"; fi
  if has avx512bw; then levels="$levels;avx512"; fi
  if has avx512_vnni; then levels="$levels;avx512_vnni;amx_emulated"; fi
  if has avx512_bf16; then levels="$levels;avx512_bf16"; fi
  if has amx_int8; then levels="$levels;amx"; fi
fi

# build SANITIZERS [of the kernels]
build() {
  build=build/sanitize/$form tree=build/sanitize/$form/tree
  cmake -S . -B "$build" -G Ninja -DPython_EXECUTABLE="$python" -DKVASIR_SANITIZE="$1" \
    -DKVASIR_SANITIZE_KERNELS="${2:-$1}" -DKVASIR_LEVELS="$levels"
  cmake --build "$build"
  # A copy of the package around the checked module.
  rm -rf "$tree"
  mkdir -p "$tree"
  cp -r kvasir tests pyproject.toml "$tree"
  rm -f "$tree"/kvasir/_native*.so
  cp "$build"/_native*.so "$tree/kvasir/"
}

# check LIBRARIES [arguments of pytest]
check() (
  cd "build/sanitize/$form/tree"
  preload=""
  for library in $1; do preload="$preload $(gcc -print-file-name="$library")"; done
  shift
  # The interpreter itself is not checked: its leaks are no concern of ours. Memory in fixed places, or the
  # thread sanitizer cannot start on every kernel. -S keeps an editable install from standing in for the tree.
  export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH="$site"
  # One thread for NumPy's library: the sanitizer sees only half of what its threads tell each other.
  export TSAN_OPTIONS="suppressions=$here/tsan.supp" OPENBLAS_NUM_THREADS=1
  LD_PRELOAD=$preload setarch -R "$python" -S -m pytest -p no:cacheprovider -o timeout=900 "$@"
)

memory="libasan.so libubsan.so" threads=libtsan.so
pool="tests/unit/test_pool.py tests/unit/test_packing.py tests/diff/test_native_programs.py"
engine="tests/diff/test_long_context.py tests/diff/test_native_exactness.py tests/diff/test_bundle_exactness.py"
engine="$engine tests/diff/test_draft_heads.py tests/diff/test_draft_vocabularies.py"
# shellcheck disable=SC2086 # lists of words
case $form in
  short)
    build address,undefined address
    check "$memory" tests/unit/test_pool.py tests/diff/test_sampling.py tests/diff/test_kernels.py \
      tests/diff/test_attention.py $engine "$@" \
      -k "test_pool or share_a_context or (Q4_1 and replayed and overlapped and computed) \
or (test_sampling and 1025) or cut_anywhere or cut_items or (test_bundle and reading and chunks and staggered) or its_paper or in_other_words"
    ;;
  memory)
    build address,undefined
    check "$memory" $pool tests/unit/test_packed_cache.py tests/prop/test_packed_fuzz.py \
      tests/diff/test_sampling.py tests/diff/test_sampling_support.py tests/diff/test_kernels.py \
      tests/diff/test_compact.py tests/diff/test_attention.py tests/diff/test_native_numerics.py $engine "$@"
    ;;
  threads)
    build thread
    check "$threads" $pool tests/unit/test_masks.py $engine "$@" -k "not test_native_exactness or overlapped"
    ;;
esac
