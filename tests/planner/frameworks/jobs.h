#pragma once
// Configurations as check() takes them, for tests.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.h"
#include "models/parameters.h"
#include "models/program/fp8_parameters.h"
#include "models/program/loss.h"
#include "planner/frameworks/check.h"
#include "planner/frameworks/emit.h"
#include "planner/frameworks/torch/torch.h"
#include "tests/planner/sources.h"

namespace qplan {

inline CheckQuestion question_of(const ModelSpec& model, const Json& config, std::int64_t gpus) {
  return {model, config, {.gpus = gpus, .compute_capability = 90}, 8, {}, {}, {}};
}

inline std::vector<ConfigText> texts_of(const std::vector<EmittedFile>& files) {
  std::vector<ConfigText> texts;
  for (const EmittedFile& file : files) {
    if (file.name != "README.md") texts.push_back({file.name, file.text});
  }
  return texts;
}

inline std::string findings_text(const Checked& checked) {
  std::string text;
  for (const Finding& f : checked.findings) {
    text += to_string(f.place) + ": [" + f.rule + "] " + f.message + "\n";
  }
  return text;
}

// `text` with its first `from` written as `to`.
inline std::string with_words(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  QPLAN_CHECK(at != std::string::npos, "the text has what is changed in it");
  return text.replace(at, from.size(), to);
}

// The first limit that a plan breaks of those that a search of its job would ask; "": none.
inline std::string_view broken_limit(Framework framework, const Subject& subject) {
  for (const Limit* limit : limits_of_plans(framework, subject)) {
    if (limit->broken(subject)) return limit->rule;
  }
  return {};
}

// Words that say nothing here, at their default: what no configuration can tell apart.
inline ParallelPlan canonical(ParallelPlan p, const ModelSpec& model, RecipeKind recipe) {
  const ParallelPlan defaults;
  // Questions of the data, not of a configuration.
  p.routing = defaults.routing;
  p.document_len = defaults.document_len;
  if (p.cp == 1) p.cp_comm = defaults.cp_comm;
  if (!model.moe) p.moe_dispatcher = defaults.moe_dispatcher;
  if (!model.moe) p.moe_permute_fusion = defaults.moe_permute_fusion;
  if (!may_keep_fp8_parameters(p, recipe_of(recipe))) p.fp8_param_gather = true;
  if (!p.cuda_graph) p.cuda_graph_scope = defaults.cuda_graph_scope;
  if (p.tp == 1) p.overlap.remove(OverlapKind::tp);
  p.loss = loss_word(p.loss, p.deterministic, recipe_of(recipe));
  // Parts that do not divide the tokens are the whole.
  ParallelPlan unsaid = p;
  unsaid.loss = LossKind::by_framework;
  const bool titan = recipe == RecipeKind::fsdp2_compile;
  if (titan && torchtitan_loss_chunks(model, unsaid) == 1) p.loss = LossKind::by_framework;
  if (p.lora_rank == 0) p.lora_alpha = defaults.lora_alpha;
  if (p.lora_rank > 0 && !p.lora_targets.empty()) {
    const LoraTargets present = targets_of(model);
    p.lora_targets = p.lora_targets & present;
    if (p.lora_targets == (all_linear() & present)) p.lora_targets = {};
  }
  if (p.pp == 1) p.schedule = ScheduleKind::one_f_one_b;
  if (p.fsdp_shard == p.dp * p.cp) p.fsdp_shard = 0;
  return p;
}

// check(), whose findings cite what a reader can open.
inline Checked check_cited(std::span<const ConfigText> files, const CheckQuestion& question) {
  Checked checked = check(files, question);
  for (const Finding& f : checked.findings) {
    CAPTURE(f.rule);
    CAPTURE(f.source);
    const bool rule = f.source.starts_with("rule of ");  // "rule of megatron: ..."
    const std::string cited = rule ? f.source.substr(f.source.find(": ") + 2) : f.source;
    CHECK((cited.empty() || is_source(cited)));
  }
  return checked;
}

// What check() says of a job's files.
inline Checked ask_texts(const std::vector<ConfigText>& texts, const std::string& model_name,
                         std::int64_t gpus) {
  const ModelSpec model = load_model(model_name);
  const Json config = model_config(model_name);
  return check_cited(texts, question_of(model, config, gpus));
}

// ... of one file.
inline Checked ask_text(const std::string& name, const std::string& text,
                        const std::string& model_name = "qwen3-30b-a3b", std::int64_t gpus = 64) {
  return ask_texts({{name, text}}, model_name, gpus);
}

// The first finding of a rule; null: there is none.
inline const Finding* find(const Checked& checked, const std::string& rule) {
  const auto found = std::find_if(checked.findings.begin(), checked.findings.end(),
                                  [&](const Finding& f) { return f.rule == rule; });
  return found == checked.findings.end() ? nullptr : &*found;
}

}  // namespace qplan
