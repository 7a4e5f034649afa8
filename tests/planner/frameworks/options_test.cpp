#include <doctest/doctest.h>

#include <functional>
#include <set>

#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/bridge_adapters.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/pretraining/nanotron.h"
#include "planner/frameworks/readers/arguments.h"
#include "planner/frameworks/torch/torch.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

template <class Rows>
void names_are_known(const Rows& rows, const OptionList& list) {
  for (const auto& row : rows) {
    CAPTURE(row.key);
    bool known = list.find(row.key) != nullptr;
    const std::string key(row.key);
    for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
      known = known || list.find(key.substr(0, dot) + ".*") != nullptr;
    }
    CHECK(known);
  }
}

TEST_CASE("every option of the tables is in the framework's own list") {
  names_are_known(megatron_options(), known_options("megatron"));
  names_are_known(megatron_facts(), known_options("megatron"));
  names_are_known(megatron_deepspeed_options(), known_options("megatron_deepspeed"));
  names_are_known(megatron_deepspeed_facts(), known_options("megatron_deepspeed"));
  names_are_known(deepspeed_options(), known_options("deepspeed"));
  names_are_known(accelerate_options(), known_options("accelerate"));
  names_are_known(accelerate_facts(), known_options("accelerate"));
  std::vector<Option> titan;
  for (const Option& option : torchtitan_options()) {
    const bool of_registry = option.key == "moe_comm_backend" ||
                             option.key == "activation_checkpoint" || option.key == "loss";
    const bool of_toml = option.key == "model.converters";
    if (!of_registry && !of_toml) titan.push_back(option);
  }
  names_are_known(titan, known_options("torchtitan"));
  names_are_known(nanotron_options(), known_options("nanotron"));
  names_are_known(nanotron_facts(), known_options("nanotron"));
}

TEST_CASE("every word of a plan is one that plan files have") {
  const Json words = plan_to_json({});
  for (const auto options :
       {bridge_options(), megatron_deepspeed_options(), deepspeed_options(), trainer_options(),
        accelerate_options(), torchtitan_options(), nanotron_options()}) {
    for (const Option& option : options) {
      CAPTURE(option.key);
      const bool known = option.word.empty() || words.contains(std::string(option.word));
      CHECK(known);
    }
  }
}

TEST_CASE("the defaults that facts name are the parser's own") {
  for (const Fact& fact : megatron_facts()) {
    const KnownOption* const known = known_options("megatron").find(fact.key);
    REQUIRE(known != nullptr);
    CAPTURE(fact.key);
    const std::string own = known->otherwise == "None" ? "" : known->otherwise;
    // These two clear what is on by default, and groups of one are no groups.
    const bool switch_off = fact.key == "--disable-bias-linear" ||
                            fact.key == "--no-yarn-correction-range-round-to-int";
    const bool computed = own.empty() && !fact.otherwise.empty();
    if (switch_off || computed) continue;
    CHECK(same_value(Json(own), Json(std::string(fact.otherwise))));
  }
}

TEST_CASE("all 838 options of Megatron are known by all their spellings") {
  const OptionList& list = known_options("megatron");
  CHECK(list.names().size() >= 838);
  REQUIRE(list.find("--disable-tp-comm-overlap-ag") != nullptr);
  CHECK(list.find("--disable-tp-comm-overlap-ag") == list.find("--no-tp-comm-overlap-ag"));
  CHECK(list.find("--tensor-model-parallel") == nullptr);
}

TEST_CASE("layouts print as Megatron reads them") {
  ParallelPlan plan;
  plan.pp = 2;
  plan.vpp = 2;
  plan.pipeline_layout = {1, 5, 2, 0};
  CHECK(megatron_layout(plan, 1) == "Et|t*5|tt|mL");
}

TEST_CASE("lists of expert layers") {
  CHECK(moe_layers("2", 4) == std::vector<bool>{true, false, true, false});
  CHECK(moe_layers("([0]*1+[1]*2)", 3) == std::vector<bool>{false, true, true});
  CHECK(moe_layers("([1]*1+[0]*1)*2", 4) == std::vector<bool>{true, false, true, false});
  CHECK(moe_layers("[0, 1]", 2) == std::vector<bool>{false, true});
  for (const std::string bad : {"", "x", "[1", "([1]", "[1]*", "0", "[1]*99999999"}) {
    CAPTURE(bad);
    CHECK_THROWS(moe_layers(bad, 4));
  }
}

}  // namespace
}  // namespace qplan
