#include "models/pods.h"

#include <algorithm>
#include <numeric>

namespace qplan {
namespace {

// How many edges of rings leave a pod, one of each group that does, and the bytes that leave it for
// each byte of a rank's in all-to-alls.
struct Leaving {
  double edges = 0, exchanged = 0;
  Leaving& operator+=(const Leaving& other) {
    edges += other.edges;
    exchanged += other.exchanged;
    return *this;
  }
};

// `groups` groups of `size` that have `inside` ranks in the pod: each of these sends its share to
// those elsewhere.
Leaving leaving(std::int64_t groups, std::int64_t inside, std::int64_t size) {
  if (groups <= 0 || inside <= 0 || inside >= size) return {};
  const auto n = static_cast<double>(groups), in = static_cast<double>(inside);
  const auto all = static_cast<double>(size);
  return {n, n * in * (all - in) / all};
}

// Groups a, a + stride, ... (a below stride) of which the pod holds the places from `from` to `to`.
// A group has one rank more before a place than others if a is below what the stride leaves of it.
Leaving leaving_of_block(std::int64_t from, std::int64_t to, std::int64_t stride,
                         std::int64_t size) {
  const std::int64_t first = from % stride, last = to % stride;
  const std::int64_t ranks = to / stride - from / stride;
  Leaving sum = leaving(std::min(first, last), ranks, size);
  sum += leaving(stride - std::max(first, last), ranks, size);
  sum += first < last ? leaving(last - first, ranks + 1, size)
                      : leaving(first - last, ranks - 1, size);
  return sum;
}

bool thinner_above(const PodLevel& level) {
  return level.gpus > 0 && level.oversubscription > 1;
}

// What changes rails in a pod: ranks of a group are at other places of their nodes, where no other
// rank of it is. (Where one is, NCCL goes there over NVLink first: PXN.) An edge leaves a node for
// each group that has ranks in it.
double edges_between_rails(std::int64_t stride, const PodLevel& level, std::int64_t domain,
                           std::int64_t world) {
  const bool same_place = stride % domain == 0 || domain % stride == 0;
  if (!level.rails || same_place) return 0;
  const auto ranks = static_cast<double>(std::min(level.gpus, world));
  return ranks * static_cast<double>(std::min(stride, domain)) / static_cast<double>(domain);
}

double share_of_links(double edges, const PodLevel& level) {
  return edges * level.oversubscription / static_cast<double>(level.gpus);
}

}  // namespace

PodLoad pod_load(std::int64_t stride, std::int64_t size, const PodLevel& level, std::int64_t domain,
                 std::int64_t world) {
  if (!thinner_above(level) || size <= 1) return {};
  const std::int64_t pod = level.gpus, block = stride * size;
  Leaving most;
  most.edges = edges_between_rails(stride, level, domain, world);
  if (most.edges > 0) most.exchanged = static_cast<double>(std::min(pod, world));
  // Pods repeat once they begin where a block does.
  const std::int64_t pods = (world + pod - 1) / pod;
  const std::int64_t distinct = std::min(pods, block / std::gcd(block, pod));
  for (std::int64_t i = 0; i < distinct && pods > 1; ++i) {
    const std::int64_t begin = i * pod, end = std::min(begin + pod, world);
    Leaving sum;
    const std::int64_t first = begin / block, last = (end - 1) / block;
    for (const std::int64_t at : {first, last}) {
      const std::int64_t base = at * block;
      sum += leaving_of_block(std::max(begin - base, std::int64_t{0}), std::min(end - base, block),
                              stride, size);
      if (first == last) break;
    }
    most.edges = std::max(most.edges, sum.edges);
    most.exchanged = std::max(most.exchanged, sum.exchanged);
  }
  return {share_of_links(most.edges, level), share_of_links(most.exchanged, level)};
}

double message_load(std::int64_t from, std::int64_t ranks, std::int64_t stride,
                    const PodLevel& level, std::int64_t domain, std::int64_t world) {
  if (!thinner_above(level)) return 0;
  const std::int64_t low = std::min(from, from + stride), high = std::max(from, from + stride);
  const bool leaves = low / level.gpus != (high + ranks - 1) / level.gpus;
  const double pods = leaves ? static_cast<double>(std::min(ranks, level.gpus)) : 0;
  const double rails = edges_between_rails(high - low, level, domain, world);
  return share_of_links(std::max(pods, rails), level);
}

}  // namespace qplan
