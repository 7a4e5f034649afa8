#include "planner/runs/states.h"

#include <cstdlib>

namespace qplan {
namespace {

// NeMo AutoModel's benchmark configurations (examples/llm_benchmark): weights, gradients and Adam's
// moments in bf16 without a master copy. With experts, parameters stay gathered through a step
// (moe.reshard_after_forward false) and gradients are reduced with the last microbatch
// (defer_fsdp_grad_sync): what a distributed optimizer does.
void set_automodel_states(const RunInputs& in, ParallelPlan& plan) {
  plan.grad_dtype = plan.main_params_dtype = plan.moment_dtype = DType::bf16;
  if (in.model.moe) plan.zero = 1;
}

// NeMo 1's distributed optimizer is Apex's. Pre-training (launcher_scripts/conf/training in
// NeMo-Framework-Launcher 24.07) keeps what bf16 weights lack of fp32 ones beside them, 2 bytes
// (store_param_remainders in MegatronBaseModel.setup_optimization, NeMo v1.23 and v2.0.0), and in
// fp8 no weights in fp8 alone: none of its scripts has fp8_params. Those of fine-tuning on H100 all
// do (examples/peft), and their optimizer's master weights and moments are bf16 (dtype: bf16 in
// conf/peft/llama/sft.yaml, 24.01 to 24.09).
void set_apex_states(const RunRow& row, ParallelPlan& plan) {
  const bool tuned = row.text("notes").find("packed") != std::string::npos;
  plan.main_params_dtype = DType::bf16;
  if (tuned) {
    plan.moment_dtype = DType::bf16;
  } else if (plan.precision == Precision::fp8) {
    plan.fp8_param_gather = false;
  }
}

}  // namespace

double release_of(const std::string& framework) {
  const std::size_t at = framework.find("NeMo ");
  return at == std::string::npos ? 0 : std::strtod(framework.c_str() + at + 5, nullptr);
}

void set_run_states(const RunRow& row, const RunInputs& in, ParallelPlan& plan) {
  constexpr double kMegatronOptimizer = 24.12;  // the first with Megatron's (launcher 3dd35614)
  const std::string& framework = row.text("framework");
  if (framework.find("AutoModel") != std::string::npos) set_automodel_states(in, plan);
  const double release = release_of(framework);
  const bool apex = framework.starts_with("NeMo") && release > 0 && release < kMegatronOptimizer;
  if (apex && in.recipe == RecipeKind::megatron && plan.zero == 1) set_apex_states(row, plan);
}

}  // namespace qplan
