// Which tables read which files.

#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/megatron/bridge_adapters.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/pretraining/nanotron.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {

std::span<const Option> options_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::megatron_yaml:
    case Dialect::slime:
      return megatron_options();
    case Dialect::megatron:  // ms-swift's arguments hold adapters, too
    case Dialect::bridge:
      return bridge_options();
    case Dialect::megatron_deepspeed:
      return megatron_deepspeed_options();
    case Dialect::ds_config:
      return deepspeed_options();
    case Dialect::trainer:
      return trainer_options();
    case Dialect::accelerate:
      return accelerate_options();
    case Dialect::torchtitan:
      return torchtitan_options();
    case Dialect::nanotron:
      return nanotron_options();
    case Dialect::own_script:
    case Dialect::llama_factory:  // read as the Trainer's job that it asks for
    case Dialect::axolotl:
    case Dialect::verl:  // read by tables of their own
    case Dialect::nemo_rl:
    case Dialect::ms_swift:
    case Dialect::ms_swift_megatron:
    case Dialect::automodel:
    case Dialect::trl:
    case Dialect::torchtune:
    case Dialect::openrlhf:
    case Dialect::torchtitan_toml:
      break;
  }
  return {};
}

std::span<const Fact> facts_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::megatron:
    case Dialect::megatron_yaml:
    case Dialect::slime:
      return megatron_facts();
    case Dialect::megatron_deepspeed:
      return megatron_deepspeed_facts();
    case Dialect::accelerate:
      return accelerate_facts();
    case Dialect::nanotron:
      return nanotron_facts();
    case Dialect::bridge:  // a recipe brings its model
    case Dialect::ds_config:
    case Dialect::trainer:
    case Dialect::torchtitan:
    case Dialect::own_script:
    case Dialect::llama_factory:
    case Dialect::axolotl:
    case Dialect::verl:
    case Dialect::nemo_rl:
    case Dialect::ms_swift:
    case Dialect::ms_swift_megatron:
    case Dialect::automodel:
    case Dialect::trl:
    case Dialect::torchtune:
    case Dialect::openrlhf:
    case Dialect::torchtitan_toml:
      break;
  }
  return {};
}

std::string_view option_list_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::megatron:
    case Dialect::megatron_yaml:
      return "megatron";
    case Dialect::slime:
      return "slime";
    case Dialect::megatron_deepspeed:
      return "megatron_deepspeed";
    case Dialect::ds_config:
      return "deepspeed";
    case Dialect::accelerate:
      return "accelerate";
    case Dialect::torchtitan:
      return "torchtitan";
    case Dialect::trainer:
      return "trainer";
    case Dialect::llama_factory:
      return "llama_factory";
    case Dialect::axolotl:
      return "axolotl";
    case Dialect::automodel:
      return "automodel";
    case Dialect::trl:
      return "trl";
    case Dialect::openrlhf:
      return "openrlhf";
    case Dialect::torchtune:
      return "torchtune";
    case Dialect::torchtitan_toml:
      return "torchtitan_toml";
    case Dialect::nanotron:
      return "nanotron";
    case Dialect::ms_swift:
      return "ms_swift";
    case Dialect::ms_swift_megatron:
      return "ms_swift_megatron";
    case Dialect::bridge:
    case Dialect::own_script:
    case Dialect::verl:
    case Dialect::nemo_rl:
      break;
  }
  return "";
}

}  // namespace qplan
