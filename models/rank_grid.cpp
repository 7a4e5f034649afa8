#include "models/rank_grid.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "models/error.h"

namespace qplan {
namespace {

// The largest (base mod domain) over the bases of all groups, j*stride*size + a with a < stride,
// for stride < domain.
std::int64_t largest_offset(std::int64_t stride, std::int64_t size, std::int64_t domain,
                            std::int64_t world) {
  const std::int64_t block = stride * size;
  const std::int64_t step = std::gcd(block, domain);
  if (world / block >= domain / step) {
    // Every multiple of `step` occurs, and `stride` consecutive bases from each.
    return stride >= step ? domain - 1 : domain - step + stride - 1;
  }
  const std::int64_t last_base = world - 1 - stride * (size - 1);
  std::int64_t largest = 0;
  for (std::int64_t first = 0; first <= last_base; first += block) {
    const std::int64_t last = std::min(first + stride - 1, last_base);
    const bool wraps = last / domain != first / domain;
    largest = std::max(largest, wraps ? domain - 1 : last % domain);
  }
  return largest;
}

}  // namespace

GroupShape shape_of_groups(std::int64_t stride, std::int64_t size, std::int64_t domain,
                           std::int64_t world) {
  if (size <= 1) return {};
  const std::int64_t block = stride * size;
  GroupShape shape;
  shape.size = static_cast<int>(size);
  // The group with base 0 starts at a domain's edge, so none has more ranks in one domain.
  shape.ranks_per_node = static_cast<int>(std::min(size, (domain + stride - 1) / stride));
  if (domain % block == 0 || world <= domain) return shape;
  if (stride >= domain) {
    shape.nodes = shape.size;
  } else {
    const std::int64_t reach = stride * (size - 1);
    const bool cut = largest_offset(stride, size, domain, world) + reach % domain >= domain;
    shape.nodes = static_cast<int>(reach / domain + (cut ? 2 : 1));
  }
  if (shape.nodes > 1) {
    const std::int64_t ranks = std::min(domain, world);
    shape.concurrent_groups =
        static_cast<int>((ranks + shape.ranks_per_node - 1) / shape.ranks_per_node);
  }
  return shape;
}

GroupShape shape_with_copies(const GroupShape& one, std::int64_t domain, std::int64_t world) {
  GroupShape both = one;
  both.size *= 2;
  if (world <= domain) {
    both.ranks_per_node *= 2;
    return both;
  }
  both.nodes *= 2;
  both.concurrent_groups = static_cast<int>((domain + one.ranks_per_node - 1) / one.ranks_per_node);
  return both;
}

int ranks_of_domain(std::int64_t world, int domain) {
  constexpr int kLargestNode = 8;  // of HGX boards: larger domains are racks
  constexpr int kTray = 4;         // GPUs of a compute tray, which is one host
  if (domain <= kLargestNode || world <= domain) return domain;
  for (int part = domain - domain % kTray; 2 * part >= domain; part -= kTray) {
    if (world % part == 0) return part;
  }
  return domain;
}

RankGrid::RankGrid(const ParallelPlan& plan, int domain, const PodLevels& pods)
    : tp_(plan.tp),
      cp_(plan.cp),
      dp_(plan.dp),
      pp_(plan.pp),
      etp_(plan.etp),
      ep_(plan.ep),
      edp_(static_cast<int>(plan.edp())),
      shard_(plan.fsdp_shard > 0 ? plan.fsdp_shard : plan.dp * plan.cp),
      copies_(stage_copies(plan.schedule)),
      shards_all_(plan.fsdp_shard == 0),
      world_(plan.world()) {
  QPLAN_CHECK(domain >= 1, "an NVLink domain holds at least one GPU");
  QPLAN_CHECK(world_ >= 1 && edp_ >= 1 && std::int64_t{etp_} * ep_ * edp_ * pp_ == world_,
              "etp*ep divides tp*cp*dp before a rank grid is built");
  QPLAN_CHECK(dp_ * cp_ % shard_ == 0, "fsdp_shard divides dp*cp before a rank grid is built");
  QPLAN_CHECK(copies_ == 1 || pp_ % 2 == 0, "stages live twice only where pp is even");
  pods_ = pods;
  domain_ = ranks_of_domain(world_, domain);
  for (PodLevel& level : pods_) level.gpus = level.gpus / domain * domain_;
  domain = domain_;
  for (int i = 0; i < kAxisCount; ++i) {
    const Sequence s = sequence(static_cast<Axis>(i));
    GroupShape& shape = shapes_[static_cast<std::size_t>(i)];
    shape = shape_of_groups(s.stride, s.size, domain, world_);
    if (spans_copies(static_cast<Axis>(i))) shape = shape_with_copies(shape, domain, world_);
  }
  // The middle stages' ranks are in no embedding group: one for each rank of a stage.
  GroupShape& embedding = shapes_[static_cast<std::size_t>(Axis::embedding)];
  if (embedding.nodes > 1) {
    embedding.concurrent_groups = static_cast<int>(std::min<std::int64_t>(world_ / pp_, domain));
  }
  for (int i = 0; i < kAxisCount; ++i) {
    GroupShape& shape = shapes_[static_cast<std::size_t>(i)];
    if (shape.nodes == 1) continue;
    for (const PodLevel& level : pods_) {
      if (level.gpus == 0) continue;
      const PodLoad load = load_of(static_cast<Axis>(i), level);
      shape.pods.edge = std::max(shape.pods.edge, load.edge);
      shape.pods.exchange = std::max(shape.pods.exchange, load.exchange);
    }
  }
}

PodLoad RankGrid::load_of(Axis axis, const PodLevel& level) const {
  const Sequence s = sequence(axis);
  // Its groups do not tile the world: one for each rank of a stage.
  if (axis == Axis::embedding) {
    return {message_load(0, world_ / pp_, s.stride, level, domain_, world_), 0};
  }
  PodLoad load = pod_load(s.stride, s.size, level, domain_, world_);
  if (!spans_copies(axis) || level.oversubscription <= 1 || world_ <= level.gpus) return load;
  // The other copies of the first pod's stages are in the last: each of its groups leaves it.
  const std::int64_t ranks = std::clamp(level.gpus / s.stride, std::int64_t{1}, s.size);
  load.edge = std::max(load.edge, level.oversubscription / static_cast<double>(ranks));
  return load;
}

double RankGrid::boundary_load(int pipeline_rank) const {
  const std::int64_t stage = world_ / pp_;
  const bool last = pipeline_rank == pp_ - 1;
  double most = 0;
  for (const PodLevel& level : pods_) {
    most = std::max(most, message_load(pipeline_rank * stage, stage,
                                       last ? -stage * (pp_ - 1) : stage, level, domain_, world_));
  }
  return most;
}

RankGrid::Sequence RankGrid::sequence(Axis axis) const {
  const std::int64_t stage = world_ / pp_;
  switch (axis) {
    case Axis::tp:
      return {1, tp_};
    case Axis::cp:
      return {tp_, cp_};
    case Axis::dp:
      return {std::int64_t{tp_} * cp_, dp_};
    case Axis::dp_cp:  // dp continues where cp ends, so the two are one sequence
      return {tp_, std::int64_t{cp_} * dp_};
    case Axis::pp:
      return {stage, pp_};
    case Axis::etp:
      return {1, etp_};
    case Axis::ep:
      return {etp_, ep_};
    case Axis::edp:
      return {std::int64_t{etp_} * ep_, edp_};
    case Axis::embedding:
      return {stage * (pp_ - 1), pp_ > 1 ? 2 : 1};
    case Axis::world:
      return {1, world_};
    case Axis::dp_shard:
      return {tp_, shard_};
    case Axis::dp_replicate:
      return {std::int64_t{tp_} * shard_, std::int64_t{dp_} * cp_ / shard_};
  }
  return {};
}

bool RankGrid::spans_copies(Axis axis) const {
  if (copies_ == 1) return false;
  return axis == Axis::dp_cp || axis == Axis::edp || axis == Axis::dp_replicate ||
         (axis == Axis::dp_shard && shards_all_);
}

const GroupShape& RankGrid::shape(Axis axis) const {
  return shapes_[static_cast<std::size_t>(axis)];
}

RankGrid::Dense RankGrid::dense(std::int64_t rank) const {
  return {.tp = static_cast<int>(rank % tp_),
          .cp = static_cast<int>(rank / tp_ % cp_),
          .dp = static_cast<int>(rank / tp_ / cp_ % dp_),
          .pp = static_cast<int>(rank / tp_ / cp_ / dp_)};
}

RankGrid::Expert RankGrid::expert(std::int64_t rank) const {
  return {.etp = static_cast<int>(rank % etp_),
          .ep = static_cast<int>(rank / etp_ % ep_),
          .edp = static_cast<int>(rank / etp_ / ep_ % edp_),
          .pp = static_cast<int>(rank / etp_ / ep_ / edp_)};
}

std::int64_t RankGrid::rank(const Dense& at) const {
  return at.tp +
         std::int64_t{tp_} * (at.cp + std::int64_t{cp_} * (at.dp + std::int64_t{dp_} * at.pp));
}

std::vector<std::int64_t> RankGrid::group(Axis axis, std::int64_t rank) const {
  QPLAN_CHECK(rank >= 0 && rank < world_, "a rank lies in [0, world)");
  if (spans_copies(axis)) {
    const std::int64_t stage = world_ / pp_;
    const std::int64_t at = rank / stage, mirror = pp_ - 1 - at;
    std::vector<std::int64_t> both =
        one_copy(axis, rank - std::max(at - mirror, std::int64_t{0}) * stage);
    const std::size_t half = both.size();
    for (std::size_t i = 0; i < half; ++i) {
      both.push_back(both[i] + std::abs(mirror - at) * stage);
    }
    return both;
  }
  return one_copy(axis, rank);
}

std::vector<std::int64_t> RankGrid::one_copy(Axis axis, std::int64_t rank) const {
  const Sequence s = sequence(axis);
  if (s.size == 1) return {rank};
  std::int64_t position = rank / s.stride % s.size;
  if (axis == Axis::embedding) {
    const int stage = dense(rank).pp;
    if (stage != 0 && stage != pp_ - 1) return {};
    position = stage == 0 ? 0 : 1;
  }
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(s.size));
  std::int64_t next = rank - position * s.stride;
  for (auto& r : ranks) {
    r = next;
    next += s.stride;
  }
  return ranks;
}

}  // namespace qplan
