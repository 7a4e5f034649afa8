#pragma once
// The words of a plan as options: one value each for `predict`, constraints for `search`.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/job_defaults.h"
#include "cli/options.h"
#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"
#include "models/program/recipe.h"
#include "planner/search/search.h"

namespace qplan {

// Which values of a word were given, by the word's key ("micro_batch_size").
using PlanWords = std::map<std::string, std::string, std::less<>>;

// Batch, sequence length, precision and routing: the same for every plan of a search.
// Those in `without` are left to the verb.
void add_job_words(CommandLine& line, PlanWords& words,
                   const std::vector<std::string_view>& without = {},
                   const std::string& default_batch = kDefaultBatch);
// The same for a search; batch and length have defaults. `worlds`: the GPUs of all searches that
// are compared, which get one batch; empty: this search's.
JobDefaults set_job_words(SearchSpace& space, const PlanWords& words, const ModelSpec& model,
                          const Recipe& recipe, std::int64_t gpus,
                          std::span<const std::int64_t> worlds = {});
// One of the job's words as a list: as many searches, one after the other.
void add_job_word_list(CommandLine& line, std::string_view key, std::vector<std::string>& values);
// The others, one value each.
void add_plan_words(CommandLine& line, PlanWords& words);
// The others, as sets of allowed values, in a group of their own.
void add_constraints(CommandLine& line, SearchSpace& space);

// `words` on top of `plan`. What follows from them and was not given is set too: dp fills the GPUs,
// several chunks are interleaved, tp takes the sequence along where the framework does, and
// gradients that nobody placed go with the precision.
// `dp_stands`: dp was said already, and a world that differs from `gpus` is for the rules to
// refuse.
ParallelPlan with_words(ParallelPlan plan, const PlanWords& words, const Recipe& recipe,
                        std::int64_t gpus, bool dp_stands = false);

// Whether a plan's line gives the word with this key itself.
bool line_says(const std::string& line, std::string_view key);

// Throws Error where an option gives a word of the line another value: nobody can tell which was
// meant.
void refuse_two_values(const std::string& line, const PlanWords& words);

// "--micro-batch-size" of "micro_batch_size".
std::string option_name(std::string_view key);

// How a plan was put: as a file, with the words' keys; as a line, with their brief forms; or as
// options.
enum class Notation : std::uint8_t { file, line, options };
// A sentence that names words by their keys, as rules do, in the notation of the question:
// "sequence_parallel" is "sp" in a line, and "--sequence-parallel" among options.
std::string in_notation(const std::string& sentence, Notation notation);

// The keys that have an option, in order (the tests compare them with the plan's own list).
std::vector<std::string_view> plan_option_keys();

}  // namespace qplan
