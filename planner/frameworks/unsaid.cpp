#include "planner/frameworks/unsaid.h"

namespace qplan {

ParallelPlan plan_unsaid(Framework framework, const ModelSpec& model, RecipeKind recipe) {
  ParallelPlan plan;
  plan.global_batch_size = plan.dp = 0;
  const bool parsed = framework == Framework::megatron || framework == Framework::slime;
  plan.moe_permute_fusion = !model.moe || !parsed;  // off in Megatron's parser, unless said
  plan.dropout = parsed;                            // 0.1 there
  switch (framework) {
    case Framework::ms_swift:  // read as the job of another's that it makes
    case Framework::megatron:
      plan.moe_dispatcher = model.moe ? MoeDispatcher::allgather : MoeDispatcher::alltoall;
      break;
    case Framework::slime:
      plan.zero = 1;
      break;
    case Framework::verl:
    case Framework::nemo_rl:
      plan.overlap = recipe == RecipeKind::megatron ? EnumSet<OverlapKind>()
                                                    : recipe_of(recipe).defaults.overlap;
      plan.grad_dtype = DType::fp32;
      // TransformerConfig's own default, which verl's scripts set where they want the kernels.
      if (recipe == RecipeKind::megatron) plan.moe_permute_fusion = !model.moe;
      break;
    case Framework::megatron_bridge:
      plan.grad_dtype = DType::fp32;
      break;
    case Framework::deepspeed:
    case Framework::megatron_deepspeed:
      plan.grad_dtype = DType::bf16;
      plan.overlap = recipe_of(recipe).defaults.overlap;
      break;
    case Framework::automodel:  // read as the job of another's that it makes
    case Framework::trl:
    case Framework::fsdp2:
      plan.overlap = recipe_of(recipe).defaults.overlap;
      plan.zero = 3;
      break;
    case Framework::nanotron:
      plan.overlap = recipe_of(recipe).defaults.overlap;
      plan.zero = 0;
      plan.schedule = ScheduleKind::gpipe;  // its own is afab (config/parallelism_config.py)
      break;
    case Framework::torchtitan:
      plan.overlap = recipe_of(recipe).defaults.overlap;
      plan.zero = 3;
      plan.sequence_parallel = true;
      plan.cuda_graph = true;  // unless disable_cuda_graphs
      plan.seq_len = 2048;
      break;
  }
  return plan;
}

}  // namespace qplan
