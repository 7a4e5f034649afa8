#include "planner/search/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "models/error.h"
#include "models/program/schedule.h"
#include "models/program/step_program.h"

namespace qplan {
namespace {

// nanotron balances cost, not layers (models/base.py, build_model at 2411b022): a block goes to the
// current stage, and the next stage begins once the cost so far exceeds that stage's share. Only
// decoder layers and the output projection cost anything (models/llama.py,
// get_block_compute_costs), so a large vocabulary leaves the last stages few layers or none.
std::vector<int> layout_by_cost(const ModelSpec& model, int stages) {
  const auto hidden = static_cast<double>(model.hidden_size);
  const double layer =
      4 * hidden * hidden + 3 * static_cast<double>(model.intermediate_size) * hidden;
  const double head = static_cast<double>(model.vocab_size) * hidden;
  const double total = layer * static_cast<double>(model.num_layers) + head;
  std::vector<int> layout(static_cast<std::size_t>(stages), 0);
  std::size_t stage = 0;
  for (std::int64_t i = 1; i <= model.num_layers && stage < layout.size(); ++i) {
    ++layout[stage];
    const double share = total * static_cast<double>(stage + 1) / stages;
    if (layer * static_cast<double>(i) > share) ++stage;
  }
  return layout;
}

// Reads the items up to the end or a closing bracket and appends what they stand for.
class LayoutText {
 public:
  explicit LayoutText(std::string_view text) : text_(text) {}

  std::string expanded() {
    std::string letters = sequence();
    if (at_ != text_.size()) fail();
    return letters;
  }

 private:
  static constexpr std::size_t kLongest = 1 << 16;

  [[noreturn]] void fail() const {
    throw Error(
        fmt::format("pipeline layout '{}' cannot be read; it is made of E, t, m, L, |, "
                    "(...) and *n",
                    shown(text_)));
  }

  [[nodiscard]] char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  std::string item() {
    if (next() != '(') return {text_[at_++]};
    ++at_;
    std::string inside = sequence();
    if (next() != ')') fail();
    ++at_;
    return inside;
  }

  std::size_t repetitions() {
    if (next() != '*') return 1;
    std::size_t n = 0;
    const char* const from = text_.data() + at_ + 1;
    const auto [end, code] = std::from_chars(from, text_.data() + text_.size(), n);
    if (code != std::errc{} || n > kLongest) fail();
    at_ += 1 + static_cast<std::size_t>(end - from);
    return n;
  }

  std::string sequence() {
    std::string letters;
    while (at_ < text_.size() && next() != ')') {
      if (std::string_view("EtmL|(,").find(next()) == std::string_view::npos) fail();
      const std::string piece = item();
      const std::size_t times = repetitions();
      if (letters.size() + piece.size() * times > kLongest) fail();
      for (std::size_t i = 0; i < times; ++i) letters += piece;
    }
    return letters;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<int> framework_layout(const ModelSpec& model, const ParallelPlan& plan,
                                  RecipeKind recipe) {
  const int stages = plan.pp * chunks_per_rank(plan);
  if (stages == 1) return {};
  if (recipe_of(recipe).can.placement == LayerPlacement::by_cost) {
    return stages > model.num_layers ? std::vector<int>{} : layout_by_cost(model, stages);
  }
  // Embedding and loss may have stages of their own.
  const std::int64_t places = model.num_layers + 2 + model.num_mtp_layers;
  if (model.num_layers % stages == 0 || stages > places) return {};
  return stage_layers(model, plan);
}

std::vector<int> balanced_layout(std::int64_t layers, const ParallelPlan& plan, EndWork ends) {
  const int stages = plan.pp * chunks_per_rank(plan);
  const auto rank_of = [&](std::size_t stage) {
    return static_cast<std::size_t>(rank_of_stage(plan.schedule, plan.pp, static_cast<int>(stage)));
  };
  std::vector<int> layout(static_cast<std::size_t>(stages), 0);
  std::vector<double> stage(layout.size(), 0), rank(static_cast<std::size_t>(plan.pp), 0);
  const auto give = [&](std::size_t to, double work) {
    stage[to] += work;
    rank[rank_of(to)] += work;
  };
  const auto layer_of = [&](std::size_t to) {
    return ends.layer.empty() ? 1 : ends.layer[rank_of(to)];
  };
  give(0, ends.first);
  give(layout.size() - 1, ends.last);
  // Rule layout_empty_stage: only the ends may go without layers.
  for (std::size_t i = 1; i + 1 < layout.size(); ++i, --layers) {
    if (layers == 0) return {};
    ++layout[i];
    give(i, layer_of(i));
  }
  for (; layers > 0; --layers) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < layout.size(); ++i) {
      // Where ranks differ, with one more layer: the faster takes it.
      const auto work = [&](std::size_t to) {
        const double more = ends.layer.empty() ? 0 : layer_of(to);
        return std::pair{rank[rank_of(to)] + more, stage[to]};
      };
      if (work(i) <= work(best)) best = i;
    }
    ++layout[best];
    give(best, layer_of(best));
  }
  return layout;
}

std::vector<int> parse_megatron_layout(std::string_view text) {
  std::vector<int> layout{0};
  for (const char letter : LayoutText(text).expanded()) {
    if (letter == '|') layout.push_back(0);
    if (letter == 't') ++layout.back();
  }
  return layout;
}

}  // namespace qplan
