#pragma once
// Levels of the network above nodes: a pod's nodes reach each other at their cards' rate, pods
// reach each other over fewer links.

#include <array>
#include <cstdint>

namespace qplan {

// One level. Ranks fill a pod before they begin the next, and a job begins at a pod's edge.
struct PodLevel {
  std::int64_t gpus = 0;        // of a pod; 0: there is no such level
  double oversubscription = 1;  // what the cards of a pod carry, over what its links to others do
  // Each card of a node has a leaf switch of its own, which reaches the cards at the same place of
  // the pod's other nodes; from one such rail to another the links above are taken.
  bool rails = false;
  bool operator==(const PodLevel&) const = default;
};

inline constexpr std::size_t kMostPodLevels = 3;
using PodLevels = std::array<PodLevel, kMostPodLevels>;  // inner ones first

// What groups of an axis put on the links between pods, for each byte on one edge of a ring (or in
// one message), and for each byte of a rank's in an all-to-all: bytes that leave the fullest pod,
// over what its links carry while a GPU's share of the cards carries one. 0: no group leaves a pod,
// or nothing is thinner there.
struct PodLoad {
  double edge = 0, exchange = 0;
  bool operator==(const PodLoad&) const = default;
};

// Of groups base, base + stride, ... of `size` ranks that tile `world`, in nodes of `domain` ranks.
// Neighbours in a group are neighbours in NCCL's rings, so that a ring leaves a pod once; of its
// binary trees a few edges do, each with a part of the bytes: taken for the same.
PodLoad pod_load(std::int64_t stride, std::int64_t size, const PodLevel& level, std::int64_t domain,
                 std::int64_t world);

// Of messages from `ranks` ranks side by side to as many, `stride` further on or (negative) back,
// the first of them `from`.
double message_load(std::int64_t from, std::int64_t ranks, std::int64_t stride,
                    const PodLevel& level, std::int64_t domain, std::int64_t world);

}  // namespace qplan
