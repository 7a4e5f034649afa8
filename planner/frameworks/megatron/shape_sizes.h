#pragma once
// Megatron's arguments that say shapes, and how large a model can be that is read of them.

#include <array>
#include <cstdint>
#include <string_view>

namespace qplan {

struct ShapeSize {
  std::string_view flag;
  std::int64_t most;  // as models/config/decoder.h limits them: of typing mistakes, not of models
};
inline constexpr auto kShapeSizes =
    std::to_array<ShapeSize>({{"--num-layers", 1 << 14},
                              {"--hidden-size", 1 << 20},
                              {"--num-attention-heads", 1 << 16},
                              {"--num-query-groups", 1 << 16},
                              {"--kv-channels", 1 << 20},
                              {"--ffn-hidden-size", 1 << 20},
                              {"--max-position-embeddings", std::int64_t{1} << 32},
                              {"--vocab-size", 1 << 28},
                              {"--num-experts", 1 << 14},
                              {"--moe-router-topk", 1 << 14},
                              {"--moe-ffn-hidden-size", 1 << 20},
                              {"--moe-shared-expert-intermediate-size", 1 << 20}});

constexpr const ShapeSize* shape_size_of(std::string_view flag) {
  for (const ShapeSize& size : kShapeSizes) {
    if (size.flag == flag) return &size;
  }
  return nullptr;
}

constexpr bool is_shape(std::string_view flag) {
  return shape_size_of(flag) != nullptr;
}

// Of other arguments as large as a number is read.
constexpr std::int64_t most_of_shape(std::string_view flag) {
  const ShapeSize* const size = shape_size_of(flag);
  return size == nullptr ? std::int64_t{1} << 40 : size->most;
}

}  // namespace qplan
