// The benchmarks' main; `--benchmark_filter=search` runs some of them.
#include <benchmark/benchmark.h>

BENCHMARK_MAIN();
