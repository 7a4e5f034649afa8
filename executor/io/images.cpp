#include "executor/io/images.h"

#include "executor/io/philox.h"

namespace qplan {

ImageSource seeded_images(std::uint64_t seed) {
  return [seed](std::int64_t image, std::span<float> pixels) {
    for (std::size_t i = 0; i < pixels.size(); ++i) {
      const auto block =
          random_block(seed, RandomStream::images, static_cast<std::uint32_t>(image), i / 4);
      // Centred in its step of 2^-32, as the numbers of seeded weights are.
      pixels[i] = static_cast<float>(2 * (block[i % 4] + 0.5) * 0x1p-32 - 1);
    }
  };
}

}  // namespace qplan
