#!/usr/bin/env bash
# Configures and builds the preset `kernels` (Hopper only), then runs what is asked for. Needs a CUDA toolkit, CMake, ninja
# and fmt's headers, nothing else of what the whole program needs.
#
#   tools/gpu_kernels.sh [build]
#   tools/gpu_kernels.sh test [options of gpu_tests]
#   tools/gpu_kernels.sh sanitize [op…]     compute-sanitizer memcheck, racecheck, initcheck on the small cases
#   tools/gpu_kernels.sh bench [options]    the kernel benchmark
#   tools/gpu_kernels.sh pack               copies fmt's headers to build/third_party, for a machine without them
#
# PREBUILT=1: takes build/kernels/bin as it is (built elsewhere: the programs need no CUDA library). JOBS=N limits the
# build, SANITIZE_JOBS=N the sanitizers. OUT: folder for gpu_tests.json and the sanitizers' logs (default build/logs).
# MOEBIUS_CUDA_ARCHITECTURES as in CMake (default 90-real).
set -euo pipefail
cd "$(dirname "$0")/.."
script=$PWD/tools/gpu_kernels.sh
build=build/kernels packed=build/third_party/include
out=${OUT:-build/logs}
mkdir -p "$out"

configure_and_build() {
    if [ "${PREBUILT:-}" = 1 ]; then return; fi
    local options=(-D "MOEBIUS_CUDA_ARCHITECTURES=${MOEBIUS_CUDA_ARCHITECTURES:-90-real}")
    if [ ! -e /usr/include/fmt/format.h ] && [ -e "$packed/fmt/format.h" ]; then
        options+=(-D "MOEBIUS_FMT_INCLUDE=$PWD/$packed")
    fi
    cmake --preset kernels "${options[@]}" >"$out/configure.log" 2>&1 || { cat "$out/configure.log" >&2; exit 1; }
    cmake --build --preset kernels -j "${JOBS:-$(nproc)}" >"$out/build.log" 2>&1 || {
        grep -E -A12 'FAILED:|error' "$out/build.log" | head -n 150 >&2
        exit 1
    }
    echo "gpu_kernels: built in $SECONDS s"
}

# One tool on one op, a process of its own: an op that fails does not hide the others. Prints a line. Libraries' kernels
# are for memcheck alone: the others cannot follow cuDNN's barriers and what cuBLASLt writes by TMA.
sanitize_one() {
    local tool=$1 op=$2 log status=0 summary own=()
    [ "$tool" = memcheck ] || own=(--own)
    log=$out/$tool.${op// /_}.log
    timeout 400 compute-sanitizer --tool "$tool" --error-exitcode 9 --launch-timeout 120 \
        "$build/bin/gpu_tests" --bare --small "${own[@]}" --op "$op" >"$log" 2>&1 || status=$?
    summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -n 1 | sed 's/^=* *//' || true)
    printf '%-10s %-22s exit %d, %s; %s\n' "$tool" "$op" "$status" "${summary:-no summary}" \
        "$(grep -E '^passed ' "$log" || echo 'did not end')"
}

# memcheck, racecheck, initcheck, some ops at a time.
sanitize() {
    local ops=("$@")
    if [ ${#ops[@]} -eq 0 ]; then
        mapfile -t ops < <("$build/bin/gpu_tests" --list | awk '!/no CUDA variant/ { print $1 }')
    fi
    for tool in memcheck racecheck initcheck; do
        printf '%s\n' "${ops[@]}" | xargs -P "${SANITIZE_JOBS:-6}" -I '{}' "$script" sanitize-one "$tool" '{}'
    done | tee "$out/sanitizer.txt"
    ! grep -vq 'exit 0,' "$out/sanitizer.txt"
}

case ${1:-build} in
    pack)
        mkdir -p "$packed"
        cp -r "${2:-/usr/include}/fmt" "$packed/"
        echo "gpu_kernels: $packed"
        ;;
    build)
        configure_and_build
        ;;
    test)
        shift
        configure_and_build
        "$build/bin/gpu_tests" --json "$out/gpu_tests.json" "$@"
        ;;
    sanitize)
        shift
        configure_and_build
        sanitize "$@"
        ;;
    sanitize-one)
        sanitize_one "$2" "$3"
        ;;
    bench)
        shift
        configure_and_build
        "$build/bin/moebius_kernel_bench" "$@"
        ;;
    *)
        sed -n '2,/^set/p' "$0" | grep '^#' >&2
        exit 2
        ;;
esac
