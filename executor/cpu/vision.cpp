// Images: pixels into a tower, its learned positions, its tokens among those of the text; and the
// angles that rotary embeddings turn rows by.
//
// Under sequence parallelism a rank has a share of a microbatch's rows, patches or tokens, in
// order.

#include <algorithm>
#include <cmath>
#include <variant>

#include "executor/cpu/ops.h"
#include "executor/math/embedding.h"
#include "executor/math/rope.h"
#include "models/error.h"

namespace qplan {
namespace {

using math::Matrix;

// Row `r` of `rows` on this rank, counted within the microbatch.
std::int64_t in_microbatch(const Rank& rank, std::int64_t rows, std::int64_t r) {
  return (rank.job.plan.sequence_parallel ? rank.at.tp * rows : 0) + r;
}

bool in_tower(const Rank& rank, const Command& c) {
  const BlockKind kind = rank.shape(c.instance).kind;
  return kind == BlockKind::patchify || kind == BlockKind::vision || kind == BlockKind::merger;
}

void load_pixels(CpuRank& rank, const Command& c) {
  const ParallelPlan& plan = rank.job.plan;
  Values pixels(rank.tensor(c, c.writes[0]), false);
  const Matrix own = pixels.matrix();
  const std::int64_t patches = rank.job.images->patches();
  const std::int64_t sequence =
      rank.first_sequence +
      (std::int64_t{c.action.microbatch} * plan.dp + rank.at.dp) * plan.micro_batch_size;
  std::vector<float> image(static_cast<std::size_t>(patches * own.cols));
  std::int64_t loaded = -1;
  for (std::int64_t r = 0; r < own.rows; ++r) {
    const std::int64_t patch = in_microbatch(rank, own.rows, r);
    if (patch / patches != loaded) {
      loaded = patch / patches;
      rank.job.pixels(sequence * rank.job.images->images() + loaded, image);
    }
    std::copy_n(image.begin() + patch % patches * own.cols, own.cols, own.row(r).begin());
  }
  pixels.commit();
}

// The learned positions around each patch: visit(row, place in the table, share).
template <class Visit>
void each_position(const Rank& rank, const Command& c, std::int64_t rows, Visit visit) {
  const ImageLayout& layout = *rank.job.images;
  const PackedParameter& p = rank.block(c).parameters[static_cast<std::size_t>(c.op->parameter)];
  const auto side = std::llround(std::sqrt(static_cast<double>(p.rows)));
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto [row, col] = layout.patch_position(in_microbatch(rank, rows, r) % layout.patches());
    for (const math::GridPoint& point :
         math::interpolate_grid(row, col, layout.patches_a_side(), side)) {
      visit(r, point.place, point.share);
    }
  }
}

void add_patch_positions(CpuRank& rank, const Command& c) {
  const PackedParameter& p = rank.block(c).parameters[static_cast<std::size_t>(c.op->parameter)];
  if (std::get<Rowwise>(c.op->work).kind == RowwiseKind::add) {
    Values x(rank.tensor(c, c.reads[0])), y(rank.tensor(c, c.writes[0]), false);
    Values table(parameter_in(rank.tensor(c, c.reads[1]), p));
    std::ranges::copy(x.all(), y.all().begin());
    each_position(rank, c, y.matrix().rows, [&](auto r, auto place, double share) {
      for (std::int64_t i = 0; i < p.cols; ++i) {
        y.matrix().at(r, i) += static_cast<float>(share * double{table.matrix().at(place, i)});
      }
    });
    y.commit();
    return;
  }
  Values dy(rank.tensor(c, c.reads[0]));
  Values dtable(parameter_in(rank.tensor(c, c.writes[0]), p));
  each_position(rank, c, dy.matrix().rows, [&](auto r, auto place, double share) {
    for (std::int64_t i = 0; i < p.cols; ++i) {
      dtable.matrix().at(place, i) += static_cast<float>(share * double{dy.matrix().at(r, i)});
    }
  });
  dtable.commit();
}

// Rows of `tokens` visual tokens that stand in this rank's rows of the text: visit(row, token).
template <class Visit>
void each_visual_row(const Rank& rank, std::int64_t rows, Visit visit) {
  const ImageLayout& layout = *rank.job.images;
  const std::vector<std::int64_t> places = rank.positions();
  const std::int64_t length = rank.job.plan.seq_len / rank.job.plan.cp;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = in_microbatch(rank, rows, r);
    const auto token = layout.visual_token(places[math::at(row)]);
    if (token) visit(r, row / length * layout.images() * layout.tokens() + *token);
  }
}

void put_images(CpuRank& rank, const Command& c) {
  Values tokens(rank.tensor(c, c.reads[0])), text(rank.tensor(c, c.writes[0]));
  each_visual_row(rank, text.matrix().rows, [&](auto row, auto token) {
    std::ranges::copy(tokens.matrix().row(token), text.matrix().row(row).begin());
  });
  text.commit();
}

void add_images(CpuRank& rank, const Command& c) {
  Values text(rank.tensor(c, c.reads[0])), tokens(rank.tensor(c, c.reads[1]));
  Values y(rank.tensor(c, c.writes[0]), false);
  std::ranges::copy(text.all(), y.all().begin());
  each_visual_row(rank, y.matrix().rows, [&](auto row, auto token) {
    math::add(tokens.matrix().row_range(token, 1), y.matrix().row_range(row, 1));
  });
  y.commit();
}

void take_images(CpuRank& rank, const Command& c) {
  Values dtext(rank.tensor(c, c.reads[0])), dtokens(rank.tensor(c, c.writes[0]), false);
  std::ranges::fill(dtokens.all(), 0.0F);
  each_visual_row(rank, dtext.matrix().rows, [&](auto row, auto token) {
    std::ranges::copy(dtext.matrix().row(row), dtokens.matrix().row(token).begin());
  });
  dtokens.commit();
}

}  // namespace

bool run_images(CpuRank& rank, const Command& c) {
  const auto runs = [&](Role role, void (*work)(CpuRank&, const Command&)) {
    if (c.op->role == role) work(rank, c);
    return c.op->role == role;
  };
  return runs(Role::load_pixels, load_pixels) ||
         runs(Role::add_patch_positions, add_patch_positions) ||
         runs(Role::put_images, put_images) || runs(Role::add_images, add_images) ||
         runs(Role::take_images, take_images);
}

std::vector<std::int32_t> embedded_tokens(const Rank& rank, std::vector<std::int32_t> ids) {
  if (!rank.job.images) return ids;
  const std::vector<std::int64_t> places = rank.positions();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (rank.job.images->visual_token(places[i])) ids[i] = -1;
  }
  return ids;
}

std::vector<double> rope_angles(const Rank& rank, const Command& c, std::int64_t dims) {
  const ModelSpec& m = rank.spec(c);
  const BlockShape& shape = rank.shape(c.instance);
  const std::int64_t pairs = dims / 2;
  std::vector<double> angles;
  if (in_tower(rank, c)) {
    // The first half of the pairs turns by rows, the second by columns, at the same frequencies.
    const auto frequencies = math::rope_frequencies(m.rope_theta, pairs);
    for (std::int64_t patch = 0; patch < shape.images * shape.patches; ++patch) {
      for (const std::int64_t at : rank.job.images->patch_position(patch % shape.patches)) {
        for (const double f : frequencies) angles.push_back(static_cast<double>(at) * f);
      }
    }
    return angles;
  }
  const auto frequencies = math::rope_frequencies(m.rope_theta, dims, m.rope_scaling);
  for (const std::int64_t place : rank.positions()) {
    TokenPosition at{place, place, place};
    if (rank.job.images) at = rank.job.images->position(place);
    for (std::int64_t i = 0; i < pairs; ++i) {
      // Of every three pairs, the second turns by height and the third by width.
      const auto axis = static_cast<std::size_t>(i % 3);
      const bool by_axis = rank.job.images && i < 3 * m.vision->mrope_section[axis];
      angles.push_back(static_cast<double>(at[by_axis ? axis : 0]) * frequencies[math::at(i)]);
    }
  }
  return angles;
}

}  // namespace qplan
