// What Megatron-Bridge refuses of a program around a recipe: arguments that it does not take, two
// lengths of a sequence.

#include <fmt/format.h>

#include "planner/frameworks/megatron/bridge.h"
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

}  // namespace

void check_bridge_program(const Scene& scene, Findings& out) {
  const ConfigPart* const part = scene.files.find(Dialect::bridge);
  if (part == nullptr) return;
  check_lengths(part->settings, out);
  for (const PythonText& text : scene.files.python) check_arguments(text, out);
}

}  // namespace qplan
