// What Megatron-Bridge refuses of a program around a recipe: arguments that it does not take, two
// lengths of a sequence, steps counted twice, a rate that grows.

#include <fmt/format.h>

#include <utility>

#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/bridge_keys.h"
#include "planner/frameworks/megatron/bridge_modules.h"
#include "planner/frameworks/megatron/bridge_program.h"
#include "planner/frameworks/scene.h"

namespace qplan {
namespace {

void check_arguments(const PythonText& text, Findings& out) {
  for (const PythonCall& call : text.calls) {
    for (const PythonArgument* const argument : refused_arguments(call)) {
      const auto fields = bridge_fields_called(argument->name);
      out.push_back({Severity::error,
                     "recipe_argument",
                     argument->place,
                     fmt::format("{} takes no argument {}, and Python stops; it is judged as if it "
                                 "were set on the configuration",
                                 last_name(call.callee), argument->name),
                     fields.empty() ? "set it on the configuration that the recipe makes"
                                    : fmt::format("cfg.{} = {}", fields.front(), argument->text),
                     "qplan: planner/frameworks/options/bridge_recipes.tsv, what Megatron-Bridge "
                     "067f987d defines",
                     {}});
    }
  }
}

void check_lengths(const Settings& settings, Findings& out) {
  const Setting* const model = settings.find("model.seq_length");
  const Setting* const data = settings.find("dataset.seq_length");
  if (model == nullptr || data == nullptr || !model->resolved || !data->resolved) return;
  if (same_value(model->value, data->value)) return;
  // The one that stands below the recipe, or below the other, is the one that is meant.
  const bool of_model = model->place.line > data->place.line;
  const Setting& meant = of_model ? *model : *data;
  out.push_back(
      {Severity::error,
       "two_lengths",
       meant.place,
       fmt::format("model.seq_length is {} and dataset.seq_length {}: Megatron-Bridge "
                   "stops where they differ",
                   text_of(model->value), text_of(data->value)),
       fmt::format("cfg.{}.seq_length = {}", of_model ? "dataset" : "model", text_of(meant.value)),
       "Megatron-Bridge 067f987d, src/megatron/bridge/training/config.py:1644",
       {}});
}

// Sections of a YAML whose names are slips, which are judged as those that are meant.
void check_blocks(const ConfigPart& part, Findings& out) {
  for (const MeantBlock& block : part.meant_blocks) {
    Correction fix;
    if (block.name.end > block.name.begin) {
      fix = Correction{{block.place.file, block.name.begin, block.name.end, block.meant}};
      fix.renames = true;
    }
    out.push_back({Severity::error, "unknown_option", block.place,
                   fmt::format("the configuration has no section {}, and all of it is passed over "
                               "with a warning",
                               shown(block.written)),
                   fmt::format("did you mean {}?", block.meant),
                   "Megatron-Bridge 067f987d, "
                   "src/megatron/bridge/training/utils/omegaconf_utils.py (_apply_overrides)",
                   std::move(fix)});
  }
}

// A number that the program itself sets; null: it does not, or only a run can tell.
const PythonArgument* number_set(const BridgeProgram& program, std::string_view field) {
  for (const PythonAssignment& assignment : program.fields) {
    const bool number = assignment.value.resolved && assignment.value.value.is_number();
    if (assignment.target == field && number) return &assignment.value;
  }
  return nullptr;
}

// Steps counted in one way, and a rate that ends below where it begins. (A warm-up that is too long
// is cut short: training/config.py:1798.)
void check_schedule(const BridgeProgram& program, Findings& out) {
  const auto set = [&](std::string_view field) { return number_set(program, field); };
  const PythonArgument *const iterations = set("train.train_iters"), *const samples =
                                                                         set("train.train_samples");
  if (iterations != nullptr && samples != nullptr) {
    out.push_back(
        {Severity::error,
         "options_exclude",
         samples->place,
         "train.train_samples and train.train_iters exclude each other: steps are counted "
         "in one of the two",
         "cfg.train.train_iters = None",
         "Megatron-Bridge 067f987d, src/megatron/bridge/training/config.py:481",
         {}});
  }
  const PythonArgument *const lr = set("optimizer.lr"), *const least = set("optimizer.min_lr");
  if (least != nullptr) {
    const double low = least->value.get<double>();
    if (low < 0 || (lr != nullptr && low > lr->value.get<double>())) {
      out.push_back({Severity::error,
                     "option_needs",
                     least->place,
                     "optimizer.min_lr lies between 0 and optimizer.lr: the schedule stops the job "
                     "when it is built",
                     "cfg.optimizer.min_lr, smaller than cfg.optimizer.lr",
                     "Megatron-LM d98e8a64, megatron/core/optimizer_param_scheduler.py:150",
                     {}});
    }
  }
  const PythonArgument* const share = set("scheduler.lr_warmup_fraction");
  for (const std::string_view other :
       {"scheduler.lr_warmup_iters", "scheduler.lr_warmup_samples"}) {
    const PythonArgument* const count = set(other);
    if (share == nullptr || count == nullptr || count->value.get<double>() == 0) continue;
    out.push_back({Severity::error,
                   "options_exclude",
                   count->place,
                   fmt::format("scheduler.lr_warmup_fraction and {} exclude each other", other),
                   "keep one of them",
                   "Megatron-Bridge 067f987d, src/megatron/bridge/training/config.py:434",
                   {}});
  }
}

// More experts for a token than there are, and a batch that grows by what does not lead to its end.
void check_counts(const Scene& scene, const BridgeProgram& program, Findings& out) {
  const PythonArgument* const chosen = number_set(program, "model.moe_router_topk");
  const PythonArgument* const said = number_set(program, "model.num_moe_experts");
  const auto& moe = scene.question.model.moe;
  const double experts = said != nullptr ? said->value.get<double>()
                         : moe           ? static_cast<double>(moe->num_experts)
                                         : 0;
  if (chosen != nullptr && experts > 0 && chosen->value.get<double>() > experts) {
    out.push_back(
        {Severity::error,
         "option_needs",
         chosen->place,
         fmt::format("model.moe_router_topk {} is more than the {} experts that there are",
                     chosen->text, experts),
         fmt::format("at most {}", experts),
         "Megatron-LM d98e8a64, megatron/core/transformer/moe/moe_utils.py (torch.topk)",
         {}});
  }
  const PythonArgument* const end = number_set(program, "train.global_batch_size");
  for (const PythonAssignment& field : program.fields) {
    if (field.target == "train.step_batch_size_schedule" && field.value.resolved &&
        !field.value.value.is_null()) {
      out.push_back(
          {Severity::warning,
           "idle_option",
           field.value.place,
           "train.step_batch_size_schedule is Megatron-LM's, and Megatron-Bridge does not "
           "hand it on: batches stay as global_batch_size says",
           "train.rampup_batch_size",
           "Megatron-Bridge 067f987d, src/megatron/bridge/training/initialize.py:115",
           {}});
    }
    const Json& steps = field.value.value;
    const bool numbers = field.target == "train.rampup_batch_size" && field.value.resolved &&
                         steps.is_array() && steps.size() == 3 && steps[0].is_number_integer() &&
                         steps[1].is_number_integer();
    if (!numbers || end == nullptr || !end->value.is_number_integer()) continue;
    const auto start = steps[0].get<std::int64_t>(), by = steps[1].get<std::int64_t>();
    const std::int64_t rest = end->value.get<std::int64_t>() - start;
    if (by > 0 && rest >= 0 && rest % by == 0) continue;
    out.push_back({Severity::error,
                   "option_needs",
                   field.value.place,
                   fmt::format("train.rampup_batch_size goes from {} by {}, and never meets "
                               "global_batch_size {}",
                               start, by, end->text),
                   "an increment that divides the difference",
                   "Megatron-LM d98e8a64, megatron/core/num_microbatches_calculator.py",
                   {}});
  }
}

}  // namespace

void check_bridge_program(const Scene& scene, Findings& out) {
  const ConfigPart* const part = scene.files.find(Dialect::bridge);
  if (part == nullptr) return;
  check_lengths(part->settings, out);
  check_blocks(*part, out);
  const auto check = [&](const PythonText& text) {
    check_arguments(text, out);
    const BridgeProgram program = bridge_program(text);
    check_schedule(program, out);
    check_counts(scene, program, out);
  };
  if (const PythonText& whole = scene.files.bridge;
      !whole.assignments.empty() || !whole.calls.empty()) {
    check_bridge_keys(whole, scene.files.bridge_is_whole, out);
    return check(whole);
  }
  for (const PythonText& text : scene.files.python) check(text);
}

}  // namespace qplan
