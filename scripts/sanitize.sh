#!/bin/sh
# The native tests under the sanitizers: sanitize.sh PYTHON [arguments of pytest]
# All of native/ is checked but the kernels of native/isa, which take compilers minutes with checks in them.
# PYTHON's environment needs the packages of the build and of the tests; gcc alone is provided for.
set -eu
python=$1
shift
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
memory="tests/unit/test_pool.py tests/unit/test_packing.py tests/unit/test_packed_cache.py
        tests/prop/test_packed_fuzz.py tests/diff/test_native_programs.py tests/diff/test_sampling.py"
threads="tests/unit/test_pool.py tests/unit/test_packing.py tests/diff/test_native_programs.py"

# check NAME SANITIZERS LIBRARIES TESTS [arguments of pytest]
check() (
  build=build/sanitize/$1 tree=build/sanitize/$1/tree preload="" tests=$4
  for library in $3; do preload="$preload $(gcc -print-file-name="$library")"; done
  cmake -S . -B "$build" -G Ninja -DPython_EXECUTABLE="$python" -DKVASIR_SANITIZE="$2"
  cmake --build "$build"
  # A copy of the package around the checked module. -S keeps an editable install from standing in for it.
  rm -rf "$tree"
  mkdir -p "$tree"
  cp -r kvasir tests pyproject.toml "$tree"
  rm -f "$tree"/kvasir/_native*.so
  cp "$build"/_native*.so "$tree/kvasir/"
  shift 4
  cd "$tree"
  # The interpreter itself is not checked: its leaks are no concern of ours. Memory in fixed places, or the
  # thread sanitizer cannot start on every kernel.
  export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH="$site"
  # shellcheck disable=SC2086 # a list of words
  LD_PRELOAD=$preload setarch -R "$python" -S -m pytest -p no:cacheprovider $tests "$@"
)

check memory address,undefined "libasan.so libubsan.so" "$memory" "$@"
check threads thread libtsan.so "$threads" "$@"
