#!/usr/bin/env bash
# The tests that reach the native code, on a build of it that stops at the first bad memory access or undefined
# operation (AddressSanitizer, UndefinedBehaviorSanitizer). Arguments go to pytest; PYTHON is the one with what tests need.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
build=$PWD/build/sanitized
tests=(tests/runtimes/test_{row,sample,attention,linear}_kernels.py tests/runtimes/test_{cpu_runtime,constrained_steps,pack_cache}.py)

mkdir -p "$build"
if ! echo 'int main() {}' | "${CXX:-c++}" -fsanitize=address,undefined -x c++ - -o "$build/probe" 2> /dev/null; then
  echo "test-sanitized is left out: ${CXX:-c++} has no sanitizers (libasan, libubsan)"
  exit 0
fi

"$python" -m pip install --quiet --no-deps --upgrade --target "$build/package" \
  -C cmake.define.LIGHTWELL_SANITIZE=ON -C install.strip=false -C build-dir="$build/native" .
native=$(echo "$build"/package/lightwell/runtimes/cpu/_native*.so)

# An editable install redirects imports to itself through the site module, which -S leaves out: so that the package just
# built is found, and after it what else the environment has.
export PYTHONPATH="$build/package:$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
# Python itself is not built with the sanitizers, so their library has to be there before it, and libstdc++ beside it,
# whose exceptions it watches. What the interpreter keeps until its end would be reported as leaks.
export LD_PRELOAD=$(ldd "$native" | awk '/lib(asan|stdc\+\+)\.so/ { print $3 }' | sort | xargs)
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
"$python" -S -c "from lightwell.runtimes.cpu import _native; assert _native.__file__ == '$native', _native.__file__"
# -s: a fault ends the process, with its report on standard error.
exec "$python" -S -m pytest -s -m "not slow" --hypothesis-profile few "${tests[@]}" "$@"
