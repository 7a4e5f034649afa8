#pragma once
// What the checks look at, and the ways they say what they found. Private to check().

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/check.h"
#include "planner/rl/rl_step.h"

namespace qplan {

// A job's files with the plan read from them so far.
struct Scene {
  const JobFiles& files;
  const CheckQuestion& question;
  Draft draft;
  // Where each word of the plan was said.
  std::map<std::string, Place, std::less<>> said{};
  // Of a job that is fine-tuned on answers that it makes: the step, the GPUs that the files say it
  // has in all (0: they do not), and those of the job that make answers alone.
  std::optional<RlStep> step{};
  std::int64_t rl_gpus = 0;
  std::int64_t engines = 0;
  [[nodiscard]] std::int64_t trainers() const { return question.limits.gpus - engines; }
  // A file of the job by its name. Where there is none: null, and an empty text.
  [[nodiscard]] const std::string* find_text(const std::string& file) const;
  [[nodiscard]] const std::string& text_of(const std::string& file) const;
};

using Findings = std::vector<Finding>;

// Heads, or experts for a token, that Megatron refuses of a model that its arguments describe. It
// is judged with others in their place, so that nothing else is said of them.
inline constexpr std::string_view kShapesRefused = "shapes_refused";

// Options that the framework's own parser does not know, or gives values it refuses.
void check_options(const Scene& scene, Findings& out);
// Values that differ from the model's, and defaults that nobody wants.
void check_facts(const Scene& scene, Findings& out);
// Combinations that a framework refuses, or takes and means otherwise.
void check_megatron(const Scene& scene, Findings& out);
void check_bridge_adapters(const Scene& scene, Findings& out);
void check_bridge_program(const Scene& scene, Findings& out);
void check_deepspeed(const Scene& scene, Findings& out);
void check_trainer(const Scene& scene, Findings& out);  // beside ds_config.json
void check_torch(const Scene& scene, Findings& out);
void check_finetuning(const Scene& scene, Findings& out);   // LLaMA-Factory's and axolotl's YAML
void check_pretraining(const Scene& scene, Findings& out);  // torchtitan's TOML, nanotron's YAML
void check_generations(const Scene& scene, Findings& out);  // GRPO's batches of answers
void check_verl(const Scene& scene, Findings& out);
void check_nemo_rl(const Scene& scene, Findings& out);
void check_python(const Scene& scene, Findings& out);
void check_launch(const Scene& scene, Findings& out);
void list_megatron_traps(std::vector<TrapInfo>& out);
void list_deepspeed_traps(std::vector<TrapInfo>& out);

// The facts and options of a dialect; empty where it has none.
std::span<const Option> options_of(Dialect dialect);
std::span<const Fact> facts_of(Dialect dialect);
std::string_view option_list_of(Dialect dialect);  // of known_options(); empty: none

// One letter too many, too few, another, or two in each other's place; more is another word, as
// --use-gpu is to --use-mup.
bool is_slip(std::string_view written, std::string_view real);

// ---- corrections, for --fix, in the syntax of the place; else why there is none ----

// A number, true, false or a word, in quotes where the place wants them. What a shell's variable
// holds is corrected there, if nothing else reads it.
Correction with_value(const Scene& scene, const Setting& setting, const std::string& value);
// Another name, which must take the same value.
Correction with_key(const Scene& scene, const ConfigPart& part, const Setting& setting,
                    const std::string& key);
Correction removed(const Scene& scene, const ConfigPart& part, const Setting& setting);
// Of a shell's words: "--flag value" in place of a flag and its value.
Correction replaced(const Scene& scene, const Setting& setting, const std::string& arguments);
// "--flag value" behind the part's first argument, or as a key beside its first one.
Correction added(const Scene& scene, const ConfigPart& part, const std::string& arguments);

// Why an option does not take a value, a sentence; empty: it does, or its list does not tell.
std::string why_not_accepted(const ConfigPart& part, const std::string& key,
                             const Setting& setting);

}  // namespace qplan
