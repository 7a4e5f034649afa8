#pragma once
// The rows behind relations.h of transformers' Trainer. Private to relations.cpp.

#include <array>

#include "planner/frameworks/relations.h"

namespace qplan {

inline constexpr auto kTrainerRelations = std::to_array<Relation>({
    {"--fp16", "!--bf16", "", "training_args.py (__post_init__)"},
    {"--dataloader_prefetch_factor", "--dataloader_num_workers>0", "nothing is loaded ahead",
     "training_args.py (__post_init__)"},
    {"--fp16_full_eval", "!--bf16_full_eval", "", "training_args.py (__post_init__)"},
    {"--fsdp", "!--deepspeed", "each shards the model its own way",
     "trainer.py (Using --fsdp xxx together with --deepspeed)"},
    {"--load_best_model_at_end", "--eval_strategy!=no", "nothing says which is the best",
     "training_args.py (__post_init__)"},
    {"--load_best_model_at_end & --save_strategy=steps", "--eval_strategy=steps",
     "models are compared where they are saved", "training_args.py (__post_init__)"},
    {"--load_best_model_at_end & --save_strategy=epoch", "--eval_strategy=epoch",
     "models are compared where they are saved", "training_args.py (__post_init__)"},
    {"--load_best_model_at_end & --save_strategy=steps & --eval_strategy=steps & --eval_steps>=1",
     "--save_steps%--eval_steps", "models are compared where they are saved",
     "src/transformers/training_args.py:1755"},
    {"--config_overrides", "!--model_name_or_path", "a model that is loaded has its config",
     "examples/pytorch/language-modeling/run_clm.py"},
    {"--config_overrides", "!--config_name", "a model that is loaded has its config",
     "examples/pytorch/language-modeling/run_clm.py"},
});

}  // namespace qplan
