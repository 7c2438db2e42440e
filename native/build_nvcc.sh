#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the native libraries, their tests and the micro-benchmark with g++ and nvcc alone. CMakeLists.txt builds the
# same for wheels: keep the flags of the two files equal.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: build_nvcc.sh [--help]

Builds into BUILD_DIR, in five stages:
  1 kernel objects   2 engine objects   3 shared C-ABI libraries   4 kernel tests + bench   5 engine tests + demo

Results: libkdtree_cpu.so, kdt_tests_cpu, kdt_bench_cpu, kdt_engine_tests_cpu, kdt_engine_demo_cpu and, where nvcc is
found, the same with _cuda.

Environment:
  BUILD_DIR     where to build                                   (default: build, beside this script)
  CXX           the C++ compiler, also nvcc's host compiler      (default: g++)
  CUDA_HOME     the toolkit whose bin/nvcc is used               (default: nvcc on PATH, else /usr/local/cuda)
  CUDAARCHS     architectures, separated by ';', as in CMake: 90a, 90a-real, 90-virtual, native, all, all-major
                (default: this machine's GPUs, else 80;89;90a;100;120)
  KDTREE_CUDA   0: no CUDA library even where nvcc is found; 1: fail where it is not
  ASV_COMMIT    the commit named in kdt_build_info()             (default: git's HEAD)
  JOBS          compilers at once                                (default and limit: the number of processors)
  SANITIZE      sanitizers for the C++ code, for example address,undefined (CPU library and tests)
TEXT
}

case "${1:-}" in
    "") ;;
    -h | --help) usage; exit 0 ;;
    *) echo "build_nvcc.sh: unknown argument '$1', wanted --help or nothing" >&2; exit 2 ;;
esac

start=$SECONDS
cd "$(dirname "${BASH_SOURCE[0]}")"
BUILD_DIR=${BUILD_DIR:-build}
CXX=${CXX:-g++}
SANITIZE=${SANITIZE:-}
processors=$(nproc)
JOBS=${JOBS:-$processors}
((JOBS <= processors)) || JOBS=$processors

die() { echo "build_nvcc.sh: $*" >&2; exit 1; }
stage() { echo "[$1/5] $2"; }
skip() { echo "      skipped: $*"; }

command -v "$CXX" >/dev/null || die "the C++ compiler '$CXX' was not found (set CXX)"

# ---- What can be built here

shopt -s nullglob
cuda_sources=(src/cuda/*.cu src/cuda/*/*.cu)
engine_sources=(src/engine/*.cpp)
engine_cpu_sources=(src/engine/cpu/*.cpp)
engine_cuda_sources=(src/engine/cuda/*.cu src/engine/cuda/*/*.cu)
engine_tests=(tests/engine/*.cpp)
demo_sources=(demo/*.cpp)
test_sources=(tests/*.cpp)
bench_sources=(bench/*.cpp)
kdtr_sources=(src/core/kdtr*.cpp)
cpu_sources=(src/cpu/*.cpp)
core_sources=(src/core/{abi,build_info,checks,error}.cpp)
shopt -u nullglob  # commands are evaluated below, and a word with brackets must stay

nvcc=
no_cuda=
if [[ ${KDTREE_CUDA:-} == 0 ]]; then
    no_cuda="KDTREE_CUDA=0"
elif ((${#cuda_sources[@]} == 0)); then
    no_cuda="src/cuda has no .cu files"
elif [[ -n ${CUDA_HOME:-} ]]; then
    nvcc=$CUDA_HOME/bin/nvcc
    [[ -x $nvcc ]] || { no_cuda="CUDA_HOME=$CUDA_HOME has no bin/nvcc"; nvcc=; }
elif command -v nvcc >/dev/null; then
    nvcc=$(command -v nvcc)
elif [[ -x /usr/local/cuda/bin/nvcc ]]; then
    nvcc=/usr/local/cuda/bin/nvcc
else
    no_cuda="nvcc was not found (set CUDA_HOME)"
fi
[[ -n $nvcc || ${KDTREE_CUDA:-} != 1 ]] || die "KDTREE_CUDA=1, but $no_cuda"
[[ -z $nvcc || -z $SANITIZE ]] || { nvcc=; no_cuda="SANITIZE is set"; }

architectures() {
    if [[ -n ${CUDAARCHS:-} ]]; then
        echo "$CUDAARCHS"
        return
    fi
    local found
    found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^[0-9]+\.[0-9]+$' |
        sort -u | tr -d . | sed 's/^90$/90a/' | paste -sd';') || true
    echo "${found:-80;89;90a;100;120}"
}

gencode() {
    local arch number
    for arch in ${1//;/ }; do
        number=${arch%-*}
        case $arch in
            native | all | all-major)
                printf ' -arch=%s' "$arch"
                continue
                ;;
        esac
        [[ $arch == *-virtual ]] || printf ' -gencode=arch=compute_%s,code=sm_%s' "$number" "$number"
        [[ $arch == *-real ]] || printf ' -gencode=arch=compute_%s,code=compute_%s' "$number" "$number"
    done
}

# ---- How

commit=${ASV_COMMIT:-$(git rev-parse --quiet --verify HEAD 2>/dev/null || echo unknown)}
cxx_flags="-O3 -std=c++17 -fvisibility=hidden -fno-math-errno -fno-trapping-math -Wall -Wextra"
works() { echo 'int main() {}' | "$CXX" "$@" -Werror -x c++ - -o /dev/null 2>/dev/null; }
if works -fno-gnu-unique; then cxx_flags+=" -fno-gnu-unique"; fi
openmp=-fopenmp
works $openmp || { openmp=; echo "      no OpenMP: the CPU library will run on one thread"; }
[[ -z $SANITIZE ]] || cxx_flags+=" -g -fno-omit-frame-pointer -fsanitize=$SANITIZE -fno-sanitize-recover=all"
cxx="$CXX $cxx_flags $openmp -fPIC -Iinclude -Isrc"
link="$CXX $openmp ${SANITIZE:+-fsanitize=$SANITIZE} -Wl,--no-undefined -Wl,--exclude-libs,ALL"

if [[ -n $nvcc ]]; then
    archs=$(architectures)
    cuda_version=$("$nvcc" --version | sed -n 's/.*release [0-9.]*, V\([0-9.]*\).*/\1/p')
    cuda_flags="-O3 -std=c++17 -lineinfo -Xptxas=--warn-on-spills"
    # PyPI's toolkit keeps the static runtime in lib/, where its nvcc does not look.
    toolkit_lib=$(dirname "$(dirname "$nvcc")")/lib
    nv_libs=
    [[ ! -f $toolkit_lib/libcudart_static.a ]] || nv_libs=" -L$toolkit_lib"
    nv="$nvcc -ccbin $CXX $cuda_flags -Xptxas=-v$(gencode "$archs") -cudart static"
    nv+=" -Xcompiler=-fPIC,-fvisibility=hidden,-fno-gnu-unique,-Wall -Iinclude -Isrc"
    nv_host="$nvcc -ccbin $CXX -O3 -std=c++17 -DKDT_TEST_CUDA=1 -Xcompiler=-Wall,-Wextra -Iinclude -Isrc -Itests"
fi

info_defines() { # backend archs flags cuda_version
    printf ' %q' "-DKDT_BUILD_BACKEND=\"$1\"" "-DKDT_BUILD_ARCHS=\"$2\"" "-DKDT_BUILD_GIT_COMMIT=\"$commit\"" \
        "-DKDT_BUILD_FLAGS=\"$3\"" "-DKDT_BUILD_CUDA_VERSION=\"$4\""
}

mkdir -p "$BUILD_DIR"
(cd "$BUILD_DIR" && rm -rf cpu cuda log libkdtree_*.so kdt_tests_* kdt_bench_* kdt_engine_*)
mkdir -p "$BUILD_DIR"/{cpu,cuda,log}
echo "build_nvcc.sh: $CXX $("$CXX" -dumpfullversion -dumpversion), ${nvcc:+nvcc $cuda_version for $archs, }$JOBS jobs," \
    "into $BUILD_DIR"

# Commands of a stage are collected, then run $JOBS at a time. A command's output goes to a log, of which warnings are
# shown; the first failure shows its whole log and ends the build.
labels=()
commands=()
job() { labels+=("$1"); commands+=("$2"); }

run_job() {
    local log="$BUILD_DIR/log/${1//\//_}.log"
    if eval "$2" >"$log" 2>&1; then
        echo "      $1"
        grep -iE 'warning|C75[0-9][0-9]' "$log" >&2 || true
    else
        { echo "build_nvcc.sh: FAILED: $1"; echo "$2"; cat "$log"; } >&2
        return 1
    fi
}

run_jobs() {
    local running=0 i
    for i in "${!commands[@]}"; do
        if ((running == JOBS)); then
            wait -n || { wait; die "stopped after the failure above"; }
            running=$((running - 1))
        fi
        run_job "${labels[i]}" "${commands[i]}" &
        running=$((running + 1))
    done
    while ((running > 0)); do
        wait -n || { wait; die "stopped after the failure above"; }
        running=$((running - 1))
    done
    labels=()
    commands=()
}

object() { echo "$BUILD_DIR/$1/${2//\//_}.o"; }
objects() { # backend sources...
    local backend=$1 source
    shift
    for source in "$@"; do object "$backend" "$source"; done
}

# ---- 1

stage 1 "kernel objects"
for source in "${core_sources[@]}" "${cpu_sources[@]}"; do
    defines=
    [[ $source != */build_info.cpp ]] || defines=$(info_defines cpu "$(uname -m)" "$cxx_flags${openmp:+ $openmp}" "")
    job "$source" "$cxx$defines -c $source -o $(object cpu "$source")"
done
if [[ -n $nvcc ]]; then
    job "src/core/build_info.cpp (cuda)" \
        "$cxx$(info_defines cuda "${archs//;/,}" "$cuda_flags" "$cuda_version") -c src/core/build_info.cpp -o $(
            object cuda src/core/build_info.cpp)"
    for source in "${cuda_sources[@]}"; do job "$source" "$nv -c $source -o $(object cuda "$source")"; done
else
    skip "CUDA kernels: $no_cuda"
fi
run_jobs

# ---- 2

stage 2 "engine objects"
for source in "${engine_sources[@]}" "${engine_cpu_sources[@]}"; do
    flags=
    [[ $source != */cpu/draw.cpp ]] || flags=" -ffp-contract=off"  # its noise is defined to the bit
    job "$source" "$cxx$flags -c $source -o $(object cpu "$source")"
done
if [[ -n $nvcc ]]; then
    for source in "${engine_cuda_sources[@]}"; do job "$source" "$nv -c $source -o $(object cuda "$source")"; done
    ((${#engine_cuda_sources[@]} > 0)) || skip "CUDA engine: src/engine/cuda has no .cu files"
else
    skip "CUDA engine: $no_cuda"
fi
run_jobs

# ---- 3

stage 3 "shared C-ABI libraries"
exports=src/core/exports.map
mapfile -t cpu_objects < <(objects cpu "${core_sources[@]}" "${cpu_sources[@]}" "${engine_sources[@]}" \
    "${engine_cpu_sources[@]}")
job libkdtree_cpu.so "$link -shared -Wl,--version-script=$exports ${cpu_objects[*]} -ldl \
    -o $BUILD_DIR/libkdtree_cpu.so"
cuda_objects=()
if [[ -n $nvcc ]]; then
    # The core and the engine above its backends are the same host code in both libraries.
    shared_sources=(src/core/{abi,checks,error}.cpp)
    ((${#engine_cuda_sources[@]} == 0)) || shared_sources+=("${engine_sources[@]}")
    mapfile -t cuda_objects < <(objects cuda src/core/build_info.cpp "${cuda_sources[@]}" \
        "${engine_cuda_sources[@]}" && objects cpu "${shared_sources[@]}")
    job libkdtree_cuda.so "$nvcc -ccbin $CXX$nv_libs -shared -cudart static -Xlinker --no-undefined,--exclude-libs,ALL \
        -Xlinker --version-script=$exports ${cuda_objects[*]} -ldl -o $BUILD_DIR/libkdtree_cuda.so"
else
    skip "libkdtree_cuda.so: $no_cuda"
fi
run_jobs

# ---- 4

stage 4 "kernel tests + bench"
for source in "${test_sources[@]}" "${bench_sources[@]}" "${kdtr_sources[@]}"; do
    job "$source" "$cxx -Itests -c $source -o $(object cpu "$source")"
    [[ -z $nvcc || $source == src/core/* ]] ||
        job "$source (cuda)" "$nv_host -c $source -o $(object cuda "$source")"
done
run_jobs
rpath="-Wl,-rpath,'\$ORIGIN' -L$BUILD_DIR"
mapfile -t shared < <(objects cpu "${kdtr_sources[@]}" src/core/error.cpp)
mapfile -t tests < <(objects cpu "${test_sources[@]}")
mapfile -t bench < <(objects cpu "${bench_sources[@]}" tests/oracle.cpp)  # the seeded inputs
job kdt_tests_cpu "$link ${tests[*]} ${shared[*]} $rpath -lkdtree_cpu -o $BUILD_DIR/kdt_tests_cpu"
job kdt_bench_cpu "$link ${bench[*]} $rpath -lkdtree_cpu -o $BUILD_DIR/kdt_bench_cpu"
if [[ -n $nvcc ]]; then
    nv_link="$nvcc -ccbin $CXX$nv_libs -cudart static -Xlinker -rpath,'\$ORIGIN' -L$BUILD_DIR"
    job kdt_tests_cuda "$nv_link ${tests[*]//$BUILD_DIR\/cpu/$BUILD_DIR/cuda} ${shared[*]} -lkdtree_cuda \
        -o $BUILD_DIR/kdt_tests_cuda"
    job kdt_bench_cuda "$nv_link ${bench[*]//$BUILD_DIR\/cpu/$BUILD_DIR/cuda} -lkdtree_cuda \
        -o $BUILD_DIR/kdt_bench_cuda"
else
    skip "kdt_tests_cuda, kdt_bench_cuda: $no_cuda"
fi
run_jobs

# ---- 5

# The tests reach below the C ABI, so they are linked with the objects; the demo takes the library, as anybody would.
stage 5 "engine tests + demo"
for source in "${engine_tests[@]}" "${demo_sources[@]}"; do
    flags=
    [[ $source != */test_ops_draw.cpp ]] || flags=" -ffp-contract=off"
    job "$source" "$cxx$flags -Itests -Idemo -c $source -o $(object cpu "$source")"
done
run_jobs
mapfile -t kdtr < <(objects cpu "${kdtr_sources[@]}")
mapfile -t tests < <(objects cpu "${engine_tests[@]}" demo/model_bundle.cpp tests/oracle.cpp)
mapfile -t demo < <(objects cpu "${demo_sources[@]}")
job kdt_engine_tests_cpu "$link ${tests[*]} ${kdtr[*]} ${cpu_objects[*]} -ldl -o $BUILD_DIR/kdt_engine_tests_cpu"
job kdt_engine_demo_cpu "$link ${demo[*]} ${shared[*]} $rpath -lkdtree_cpu -o $BUILD_DIR/kdt_engine_demo_cpu"
if [[ -n $nvcc ]] && ((${#engine_cuda_sources[@]} > 0)); then
    job kdt_engine_tests_cuda "$nvcc -ccbin $CXX$nv_libs -cudart static ${tests[*]} ${kdtr[*]} ${cuda_objects[*]} -ldl \
        -o $BUILD_DIR/kdt_engine_tests_cuda"
    job kdt_engine_demo_cuda "$nv_link ${demo[*]} ${shared[*]} -lkdtree_cuda -o $BUILD_DIR/kdt_engine_demo_cuda"
else
    skip "kdt_engine_tests_cuda, kdt_engine_demo_cuda: ${no_cuda:-src/engine/cuda has no .cu files}"
fi
run_jobs

echo "build_nvcc.sh: done in $((SECONDS - start)) s: $(cd "$BUILD_DIR" && echo *.so kdt_*)"
