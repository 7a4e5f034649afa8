#include "models/plan/parallel_plan.h"

#include <doctest/doctest.h>

#include <random>

#include "models/error.h"
#include "models/json.h"
#include "models/plan/words.h"

using namespace qplan;

namespace {

class Dice {
 public:
  explicit Dice(std::uint32_t seed) : engine_(seed) {}
  // Uniform in [low, high].
  std::int64_t roll(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  bool coin() { return roll(0, 1) == 1; }
  int degree() { return 1 << roll(0, 5); }
  template <class E>
  E word() {
    const auto& table = Words<E>::table;
    return table[static_cast<std::size_t>(roll(0, std::ssize(table) - 1))].first;
  }
  template <class E>
  EnumSet<E> words() {
    EnumSet<E> set;
    for (const auto& [e, name] : Words<E>::table) {
      if (coin()) set.add(e);
    }
    return set;
  }

 private:
  std::mt19937 engine_;
};

// Any value that a word takes, by its type.
template <class T>
void roll(Dice& dice, const PlanWord<T>& word, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    value = dice.coin();
  } else if constexpr (std::is_enum_v<T>) {
    do value = dice.word<T>();
    while (!word.takes.empty() && !word.takes.has(value));
  } else if constexpr (std::is_same_v<T, double>) {
    value = static_cast<double>(dice.roll(0, 4000)) / 1000;
  } else {
    value = static_cast<T>(dice.roll(word.low, word.high));
  }
}

template <class E>
void roll(Dice& dice, const PlanWord<EnumSet<E>>&, EnumSet<E>& value) {
  value = dice.words<E>();
}

void roll(Dice& dice, const PlanWord<Recompute>&, Recompute& value) {
  value.kind = dice.word<RecomputeKind>();
  if (value.kind == RecomputeKind::selective) value.modules = dice.words<RecomputeModule>();
  if (value.kind == RecomputeKind::full && dice.coin()) value.layers = dice.degree();
}

void roll(Dice& dice, const PlanWord<Offload>&, Offload& value) {
  if (dice.coin()) value.optimizer = 1.0 / static_cast<double>(dice.roll(1, 1000));
  value.params = dice.coin();
  value.activation_layers = static_cast<int>(dice.roll(-1, 3));
  value.nvme = dice.coin();
}

void roll(Dice& dice, const PlanWord<std::vector<int>>&, std::vector<int>& value) {
  for (auto n = dice.roll(1, 9); n > 0; --n) value.push_back(static_cast<int>(dice.roll(0, 4)));
}

ParallelPlan random_plan(Dice& dice) {
  ParallelPlan plan;
  for_each_word([&](const auto& word) {
    if (dice.coin()) roll(dice, word, plan.*word.member);
  });
  return plan;
}

std::string complaint(std::string_view line) {
  try {
    parse_plan(line);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the line of docs/reference/contract.md 3 prints back as it was written") {
  const std::string line =
      "tp4 pp2 dp32 ep8 etp1 zero1 mbs2 gbs1024 seq4096 interleaved vpp4 recompute=selective";
  const ParallelPlan plan = parse_plan(line);
  CHECK(plan.tp == 4);
  CHECK(plan.ep == 8);
  CHECK(plan.schedule == ScheduleKind::interleaved);
  CHECK(plan.recompute.kind == RecomputeKind::selective);
  CHECK(to_string(plan) == line);
}

TEST_CASE("words at their default are left out of the line") {
  CHECK(to_string(ParallelPlan{}) == "tp1 pp1 dp1 zero0 mbs1 gbs1 seq4096");
  CHECK(to_string(parse_plan("pp2")) == "tp1 pp2 dp1 zero0 mbs1 gbs1 seq4096 1f1b");
}

TEST_CASE("every word has its place in the line") {
  const std::string line =
      "tp2 pp4 dp8 cp2 ep4 etp2 zero3 fsdp_shard=8 mbs1 gbs64 seq8192 doc512 zb-h1 layout=3+4+4+0 "
      "sp "
      "cp_comm=a2a precision=fp8 recompute=selective:layernorm+moe_act "
      "offload=optimizer:0.5,params,activations:4,nvme moe_dispatcher=deepep routing=natural "
      "capacity=1.25 optimizer=lion grad_dtype=bf16 main_params_dtype=bf16 moment_dtype=fp8 "
      "overlap=tp+grad "
      "cuda_graph "
      "cuda_graph_scope=layer compile";
  CHECK(to_string(parse_plan(line)) == line);
}

TEST_CASE("stages alike in a row are one term of a layout, and may be written out") {
  const ParallelPlan plan = parse_plan("pp8 layout=1+2+2+2+2+2+2+3+3+0");
  CHECK(plan.pipeline_layout == std::vector<int>{1, 2, 2, 2, 2, 2, 2, 3, 3, 0});
  CHECK(contains(to_string(plan), " layout=1+2*6+3+3+0"));
  CHECK(parse_plan(to_string(plan)) == plan);
  CHECK(parse_plan("layout=4*1+5*2").pipeline_layout == std::vector<int>{4, 5, 5});
  CHECK(contains(complaint("layout=4*0"), "how many stages alike"));
  CHECK(contains(complaint("layout=4*"), "how many stages alike"));
  CHECK(contains(complaint("layout=*4"), "a stage's layer count"));
  CHECK(contains(complaint("layout=1*8192+1*8192+1*8192+1*8192+1*8192+1*8192+1*8192+1*8192+1"),
                 "more than 65536 stages"));
}

TEST_CASE("any plan reads back from its line and from its JSON") {
  Dice dice(7);
  for (int i = 0; i < 2000; ++i) {
    const ParallelPlan plan = random_plan(dice);
    const std::string line = to_string(plan);
    CAPTURE(line);
    CHECK(parse_plan(line) == plan);
    CHECK(plan_from_json(Json::parse(plan_to_json(plan).dump()), "plan") == plan);
  }
}

TEST_CASE("a line changes only the words it names") {
  ParallelPlan base;
  base.tp = 4;
  base.sequence_parallel = true;
  base.overlap.add(OverlapKind::grad);
  base.pipeline_layout = {1, 2};
  CHECK(parse_plan("pp2", base).tp == 4);
  CHECK(parse_plan("pp2", base).sequence_parallel);
  const ParallelPlan reset = parse_plan("sp=false overlap=none layout=even", base);
  CHECK_FALSE(reset.sequence_parallel);
  CHECK(reset.overlap.empty());
  CHECK(reset.pipeline_layout.empty());
}

TEST_CASE("long names and hyphens are accepted in the line") {
  CHECK(parse_plan("micro-batch-size=2 sequence_parallel zb_h1  \t pp=4") ==
        parse_plan("mbs2 sp zb-h1 pp4"));
}

TEST_CASE("a number that is not a positive count is refused with its word") {
  for (const auto* line : {"tp0", "tp-4", "tp", "tp=", "tp=2x", "tp99999999999999999999", "tp8193",
                           "mbs0", "zero4", "layout=1++2", "layout=-1"}) {
    CAPTURE(line);
    CHECK(contains(complaint(line), "must be a whole number from"));
  }
  CHECK(complaint("tp0") == "tp must be a whole number from 1 to 8192, not '0'");
}

TEST_CASE("an unknown word is refused and the nearest is offered") {
  CHECK(contains(complaint("recomputes=full"), "'recompute'"));
  CHECK(contains(complaint("zb-h2"), "'zb-h"));
  CHECK(contains(complaint("tpp4"), "'tpp4' is unknown"));
  CHECK(contains(complaint("precision=bf17"), "bf17"));
  CHECK(contains(complaint("sp=maybe"), "true or false"));
  CHECK(contains(complaint("sp1"), "unknown"));
}

TEST_CASE("a word given twice is refused") {
  CHECK(contains(complaint("tp2 pp4 tp=2"), "second time"));
  CHECK(contains(complaint("1f1b schedule=zbv"), "second time"));
  CHECK(contains(complaint("overlap=tp+tp"), "twice"));
  CHECK(contains(complaint("recompute=selective:mlp+mlp"), "twice"));
  CHECK(contains(complaint("offload=params,params"), "twice"));
}

TEST_CASE("a capacity is a number of means, or 0 for no limit") {
  CHECK(parse_plan("capacity=1.25").moe_capacity_factor == 1.25);
  CHECK(parse_plan("moe_capacity_factor=2 tp2").moe_capacity_factor == 2);
  CHECK(plan_to_json(parse_plan("capacity=0.5"))["moe_capacity_factor"] == 0.5);
  CHECK(parse_plan("capacity=1 drop=position").moe_token_drop_policy == TokenDropPolicy::position);
  for (const auto* text :
       {"capacity=", "capacity=-1", "capacity=nan", "capacity=1e9", "capacity=x", "drop=last"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_plan(text), Error);
  }
}

TEST_CASE("recompute reads as docs/reference/contract.md 3 writes it") {
  CHECK(parse_recompute("none") == Recompute{});
  CHECK(parse_recompute("full:4") == Recompute{RecomputeKind::full, {}, 4});
  CHECK(to_string(parse_recompute("selective:moe_act+layernorm")) == "selective:layernorm+moe_act");
  for (const auto* text : {"", "full:0", "full:", "none:2", "selective:", "selective:attention"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_recompute(text), Error);
  }
}

TEST_CASE("offload reads as docs/reference/contract.md 3 writes it") {
  CHECK(parse_offload("optimizer").optimizer == 1);
  CHECK(parse_offload("optimizer:0.25,nvme") == Offload{.optimizer = 0.25, .nvme = true});
  CHECK(to_string(parse_offload("optimizer:0.25+activations")) == "optimizer:0.25,activations");
  CHECK(parse_offload("activations").activation_layers == -1);
  CHECK(parse_offload("activations:3").activation_layers == 3);
  for (const auto* text :
       {"", "optimizer:0", "optimizer:1.5", "optimizer:nan", "optimizer:-0.5",
        "optimizer:", "activations:0", "params:1", "cpu", "none,params", "none+params"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_offload(text), Error);
  }
}

TEST_CASE("the JSON of a plan holds every word, in one order") {
  const Json object = plan_to_json(parse_plan("tp2 overlap=tp+ep layout=1+2"));
  CHECK(object.size() == std::tuple_size_v<std::decay_t<decltype(kPlanWords)>>);
  CHECK(object.begin().key() == "tp");
  CHECK(object["precision"] == "bf16");
  CHECK(object["recompute"] == "none");
  CHECK(object["offload"] == "none");
  CHECK(object["sequence_parallel"] == false);
  CHECK(object["overlap"] == Json::array({"tp", "ep"}));
  CHECK(object["pipeline_layout"] == Json::array({1, 2}));
}

TEST_CASE("JSON mistakes are named by their path") {
  const auto complain = [](const char* text) {
    try {
      plan_from_json(Json::parse(text), "plan");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(contains(complain(R"({"tp": 0})"), "plan.tp"));
  CHECK(contains(complain(R"({"tp": "2"})"), "plan.tp"));
  CHECK(contains(complain(R"({"precision": "bf17"})"), "plan.precision"));
  CHECK(contains(complain(R"({"overlap": ["x"]})"), "plan.overlap"));
  CHECK(contains(complain(R"({"overlap": "tp"})"), "plan.overlap"));
  CHECK(contains(complain(R"({"pipeline_layout": [1, -2]})"), "plan.pipeline_layout"));
  CHECK(contains(complain(R"({"pipeline_layout": [18446744073709551615]})"), "pipeline_layout"));
  CHECK(contains(complain(R"({"tpp": 2})"), "tpp"));
  CHECK(complain(R"({"overlap": null, "pipeline_layout": null, "tp": null})").empty());
}
