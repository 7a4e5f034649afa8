#pragma once
// Where the images of a vision-language run come from. Global image j is the same whatever the
// plan: the k-th image of sequence s has the number s * images + k.

#include <cstdint>
#include <functional>
#include <span>

namespace qplan {

// Fills `pixels` with all of an image, patch by patch in the tower's order, each as its convolution
// reads it (channel, frame, row, column). Safe from several threads.
using ImageSource = std::function<void(std::int64_t image, std::span<float> pixels)>;

// Pixels drawn by seed, image and place, uniform in (-1, 1): the range of normalised pixels with
// Qwen3-VL's mean and deviation of 0.5.
ImageSource seeded_images(std::uint64_t seed);

}  // namespace qplan
