#!/bin/sh
# Start a Dask cluster over TCP, by hand, on one machine or several.
#
#   cluster/tcp.sh scheduler [OPTIONS]                    on one machine
#   cluster/tcp.sh workers ADDRESS COUNT MEMORY [OPTIONS]  on every machine that computes
#
# ADDRESS is what the scheduler prints (tcp://HOST:8786), COUNT the number of worker processes (one
# per core), MEMORY the limit of EACH ("4GiB"; 0 for none). OPTIONS go on to `dask scheduler` and
# `dask worker`.
set -eu

# read when a process starts, so they must be there before; see cluster/README.md
export MALLOC_TRIM_THRESHOLD_=268435456
export MALLOC_MMAP_THRESHOLD_=67108864
export OMP_NUM_THREADS=1
export MKL_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1

usage() {
    sed -n '4,5s/^# *//p' "$0" >&2
    exit 2
}

[ $# -ge 1 ] || usage
role=$1
shift
case $role in
scheduler)
    # Dask's dashboard needs bokeh; without it the page that the scheduler prints would be empty.
    python3 -c 'import bokeh' 2>/dev/null || set -- --no-dashboard "$@"
    exec dask scheduler "$@"
    ;;
workers)
    [ $# -ge 3 ] || usage
    address=$1 count=$2 memory=$3
    shift 3
    exec dask worker "$address" --nworkers "$count" --nthreads 1 --memory-limit "$memory" \
        --no-dashboard "$@"
    ;;
*)
    usage
    ;;
esac
