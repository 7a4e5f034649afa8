// GPU tests skip themselves, with the reason, where there is no device: 77 is CTest's word for it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const bool lists = std::any_of(argv, argv + argc, [](std::string_view word) {
    return word.find("list-test-cases") != std::string_view::npos;  // needs no device
  });
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (!lists && (code != cudaSuccess || devices == 0)) {
    std::printf("skipped: there is no GPU here (%s)\n", cudaGetErrorString(code));
    return 77;
  }
  return context.run();
}
