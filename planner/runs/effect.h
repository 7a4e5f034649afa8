#pragma once
// What a phrase of a run table means: words of a plan's line ("loss=te vpp1"), and a few more.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/runs/pattern.h"
#include "planner/runs/run_inputs.h"

namespace qplan {

// Words divided by spaces:
//   overlap=+tp-ep         adds to the plan's set, removes from it
//   recipe=WORD            predicted as this recipe
//   month=202412           ... as it was in that month
//   documents=512          packed sequences: documents of so many tokens, no longer than a sequence
//   fabric=WORD            what the network between nodes is
//   nvlinks=4              a GPU has so many NVLinks to the others of its node
//   mtp_layers=1           layers of the model that predict further ahead
//   mtp_passes=2           times that the model applies the one it has, if it has one
//   dense_layers           as many leading layers without experts as the number that follows says
//   every_2nd_layer        recomputes whole layers, every second
//   fused_adam             torch's AdamW(fused=True), whatever the month's Trainer takes
//   graphs                 CUDA graphs of the modules that the text names
//   megatron_layout        the --pipeline-model-parallel-layout that follows
//   fill_from_front        pipelines are filled from the front
//   memory_of=first_stage  the run's memory is of a GPU of that stage, not of the fullest
//   nothing                known, and nothing that is priced follows
//   any other              a word of a plan's line
class Effect {
 public:
  explicit Effect(std::string_view words);  // throws Error naming the word that is none

  // What is said of the model, and all else. A model stands before its plan does.
  void on_model(ModelSpec& model, const Found& found) const;
  void on_run(RunInputs& in, const Found& found) const;

 private:
  void read_word(std::string_view word);

  std::vector<std::function<void(ModelSpec&, const Found&)>> of_model_;
  std::vector<std::function<void(RunInputs&, const Found&)>> of_run_;
  std::string plan_words_;
};

}  // namespace qplan
