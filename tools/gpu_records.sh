#!/usr/bin/env bash
# What bench/results says of a GPU, made anew, in parts that end within ten minutes each; a failed part does not stop the next.
#
#   tools/gpu_records.sh tests      every case of every op, test_eval and test_train on the card: gpu_tests.json
#   tools/gpu_records.sh sanitize   compute-sanitizer's three tools on every op: sanitizer.txt
#   tools/gpu_records.sh bench [options of tools/bench_gpu.py]
#   tools/gpu_records.sh profile [options of tools/profile_kernels.py]
#   tools/gpu_records.sh join       bench/results/gpu_tests.json from the first two
#
# Programs are those of BIN (default build/cuda/bin: `make CUDA=1 build`, then the targets gpu_tests, moebius_kernel_bench,
# moebius_bench, test_eval, test_train, moebius_torch, moebius_kernel_times). What is written goes to OUT (default build/logs). PYTHON has
# torch and transformers (default python3).
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-build/cuda/bin}
out=${OUT:-build/logs}
mkdir -p "$out" build/kernels
# tools/gpu_kernels.sh takes its programs from there.
ln -sfn "$(realpath "$bin")" build/kernels/bin

tests() {
    local bad=0
    "$bin/gpu_tests" --jobs "${JOBS:-$(nproc)}" --json "$out/gpu_tests.json" >"$out/gpu_tests.log" 2>&1 &
    local cases=$!
    MOEBIUS_TEST_DEVICE=cuda "$bin/test_eval" --gtest_brief=1 >"$out/test_eval.log" 2>&1 || bad=1
    MOEBIUS_TEST_DEVICE=cuda "$bin/test_train" --gtest_brief=1 >"$out/test_train.log" 2>&1 || bad=1
    wait $cases || bad=1
    grep -E '^FAILED|^passed' "$out/gpu_tests.log" | tail -n 40
    tail -n 3 "$out/test_eval.log" "$out/test_train.log"
    return $bad
}

join() {
    local more=()
    [ ! -e "$out/sanitizer.txt" ] || more=(--sanitizer "$out/sanitizer.txt")
    tools/gpu_tests_json.py --tests "$out/gpu_tests.json" "${more[@]}" --program "test_eval=$out/test_eval.log" \
        --program "test_train=$out/test_train.log"
}

case ${1:-} in
    tests) tests ;;
    sanitize) PREBUILT=1 OUT=$out tools/gpu_kernels.sh sanitize "${@:2}" ;;
    bench) tools/bench_gpu.py --bin "$bin" --python "${PYTHON:-python3}" "${@:2}" ;;
    profile) tools/profile_kernels.py --bin "$bin" --logs "$out" "${@:2}" ;;
    join) join ;;
    *)
        sed -n '2,/^set/p' "$0" | grep '^#' >&2
        exit 2
        ;;
esac
