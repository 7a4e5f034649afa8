#include "planner/runs/measured_runs.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/error.h"
#include "planner/rules/feasible.h"
#include "planner/runs/predict_runs.h"
#include "planner/runs/soft_rules.h"
#include "tests/planner/runs/rows.h"

namespace qplan {
namespace {

std::string plan_of(const Cells& changes) {
  const MeasuredRun run = read(changes);
  return run.inputs ? to_string(run.inputs->plan) : run.unpriced;
}

TEST_CASE("empty cells are the framework's defaults") {
  CHECK(plan_of({}) == "tp1 pp1 dp8 zero1 mbs1 gbs64 seq2048 overlap=grad+param");
  // Megatron's recipes split the sequence with tp; experts' tp is tp where nobody says.
  CHECK(plan_of({{"tp", "4"}}) == "tp4 pp1 dp2 zero1 mbs1 gbs64 seq2048 sp overlap=grad+param");
  CHECK(plan_of({{"tp", "2"}, {"experts", "8"}, {"topk", "2"}, {"moe_ffn", "512"}, {"ep", "4"}}) ==
        "tp2 pp1 dp4 ep4 etp2 zero1 mbs1 gbs64 seq2048 sp overlap=grad+param");
  CHECK(plan_of({{"recipe", "megatron_legacy"}, {"tp", "4"}}) ==
        "tp4 pp1 dp2 zero0 mbs1 gbs64 seq2048");
  CHECK(plan_of({{"recipe", "fsdp2_compile"}, {"pp", "4"}}).starts_with("tp1 pp4 dp2 zero3 mbs8 "));
}

TEST_CASE("a row's words are the plan's") {
  CHECK(plan_of({{"pp", "2"},
                 {"vpp", "2"},
                 {"zero", "0"},
                 {"micro_batch", "2"},
                 {"recompute_words", "selective:layernorm"},
                 {"cuda_graph", "full_iteration"}}) ==
        "tp1 pp2 dp4 zero0 mbs2 gbs64 seq2048 interleaved vpp2 recompute=selective:layernorm "
        "overlap=grad cuda_graph");
  CHECK(plan_of({{"fsdp", "fsdp"}, {"zero", "3"}}) ==
        "tp1 pp1 dp8 zero3 mbs1 gbs64 seq2048 overlap=grad+param");
  CHECK(read({{"fsdp", "fsdp"}, {"zero", "3"}}).inputs->recipe == RecipeKind::megatron_fsdp);
  CHECK(plan_of({{"recipe", "fsdp1"}, {"fsdp", "hsdp"}, {"num_gpus", "64"}}) ==
        "tp1 pp1 dp64 zero3 fsdp_shard=8 mbs1 gbs64 seq2048 grad_dtype=bf16 "
        "overlap=grad+param");
}

// A column of chunks says 1f1b or interleaved; any other schedule is a word of the plan.
TEST_CASE("a row's own word for a schedule is the plan's") {
  const auto schedule = [](const char* pp, const char* vpp, const char* words) {
    CsvTable table = one_run({{"pp", pp}, {"vpp", vpp}, {"zero", "0"}});
    table.columns.push_back("plan_words");
    table.rows.front().cells.push_back(words);
    return read_measured_runs(table).front().inputs->plan.schedule;
  };
  CHECK(schedule("4", "1", "zb-h1") == ScheduleKind::zb_h1);
  CHECK(schedule("4", "2", "zbv") == ScheduleKind::zbv);
  CHECK(schedule("4", "1", "gpipe") == ScheduleKind::gpipe);
  CHECK(schedule("4", "1", "interleaved vpp2") == ScheduleKind::interleaved);
  CHECK(schedule("4", "2", "") == ScheduleKind::interleaved);
  CHECK(schedule("4", "1", "") == ScheduleKind::one_f_one_b);
  CHECK(schedule("1", "1", "zb-h1") == ScheduleKind::one_f_one_b);  // no stages to schedule
}

TEST_CASE("flags change what the columns said") {
  const auto plan = [](const char* flags) {
    return plan_of({{"tp", "2"}, {"other_flags", flags}});
  };
  const std::string head = "tp2 pp1 dp4 zero1 mbs1 gbs64 seq2048 sp";
  CHECK(plan("no comm overlap, CE fusion, fp32 grad accumulate") == head + " loss=te");
  CHECK(plan("TP comm overlap, overlap grad-reduce/param-gather") ==
        head + " overlap=tp+grad+param");
  CHECK(plan("grad_reduce bf16, bf16 Adam moments") ==
        head + " grad_dtype=bf16 moment_dtype=bf16 overlap=grad+param");
  CHECK(plan("TE CUDA graphs attn+moe_router, mock data") ==
        head + " overlap=grad+param cuda_graph cuda_graph_scope=layer");
  CHECK(plan("cuda_graph=transformer_engine:moe_router+moe_preprocess") ==
        head + " overlap=grad+param cuda_graph cuda_graph_scope=router");
  CHECK(plan("cuda_graph=full_iteration:") == head + " overlap=grad+param cuda_graph");
  CHECK(plan("cuda_graph=transformer_engine:mlp") == head + " overlap=grad+param");
}

TEST_CASE("a row that says its sequences are packed has documents shorter than them") {
  CHECK(plan_of({{"notes", "Q=A; SFT packed seq 2048"}}) ==
        "tp1 pp1 dp8 zero1 mbs1 gbs64 seq2048 doc512 overlap=grad+param");
  CHECK(read({{"other_flags", "packing"}}).inputs->plan.document_len == 512);
  CHECK(read({{"other_flags", "packing"}, {"seq_len", "256"}}).inputs->plan.document_len == 256);
  CHECK(read({{"notes", "Q=A; SFT"}}).inputs->plan.document_len == 0);
}

TEST_CASE("dropped tokens mean capacity 1 and the dispatcher that drops") {
  const auto run = read({{"experts", "8"},
                         {"topk", "2"},
                         {"moe_ffn", "1024"},
                         {"ep", "8"},
                         {"dispatcher", "hybridep"},
                         {"other_flags", "token drop"}});
  REQUIRE(run.inputs);
  CHECK(run.inputs->plan.moe_capacity_factor == 1);
  CHECK(run.inputs->plan.moe_dispatcher == MoeDispatcher::alltoall);
  CHECK(run.inputs->plan.routing == Routing::forced);
}

TEST_CASE("NeMo's recipes of experts drop tokens, but for latent attention on Hopper") {
  const auto plan = [](const Cells& changes) {
    Cells cells{{"framework", "NeMo"}, {"experts", "8"}, {"topk", "2"},
                {"moe_ffn", "1024"},   {"ep", "8"},      {"recompute_words", "none"}};
    for (const auto& [column, text] : changes) cells[column] = text;
    return read(cells).inputs->plan;
  };
  CHECK(plan({}).moe_capacity_factor == 1);
  CHECK(plan({}).moe_dispatcher == MoeDispatcher::alltoall);
  CHECK(plan({{"routing", "natural"}}).moe_capacity_factor == 0);
  const Cells latent{{"base_model", "deepseek-v3"},
                     {"layers", ""},
                     {"hidden", ""},
                     {"heads", ""},
                     {"ffn", ""},
                     {"experts", ""},
                     {"topk", ""},
                     {"moe_ffn", ""}};
  CHECK(plan(latent).moe_dispatcher == MoeDispatcher::deepep);
  CHECK(plan(latent).moe_capacity_factor == 0);

  // Megatron-Bridge's recipe of such a model keeps Adam's moments in bf16.
  CHECK(plan(latent).moment_dtype == DType::fp32);
  Cells bridged = latent;
  bridged["framework"] = "Megatron-Bridge (NeMo 26.02)";
  CHECK(plan(bridged).moment_dtype == DType::bf16);
  // ... and recomputes up projections, unless a row says otherwise.
  CHECK(plan(bridged).recompute.kind == RecomputeKind::none);
  bridged["recompute_words"] = "";
  CHECK(plan(bridged).recompute.modules.has(RecomputeModule::mla_up_proj));
  CHECK(plan(bridged).recompute.modules.has(RecomputeModule::mlp));  // 80 GB

  // Release 25.09 captured whole layers of such experts, on Blackwell.
  Cells bridge{{"framework", "Megatron-Bridge (NeMo 25.09)"}, {"other_flags", "token drop"}};
  CHECK_FALSE(plan(bridge).cuda_graph);
  bridge["hardware"] = "b200";
  CHECK(plan(bridge).cuda_graph);
  bridge["recompute_words"] = "full";
  CHECK_FALSE(plan(bridge).cuda_graph);
}

TEST_CASE("Megatron-Bridge fills pipelines of latent attention from the front") {
  using Layers = std::vector<int>;
  const auto layers = [](std::string_view framework, std::string_view model, int pp, int vpp) {
    Cells cells{{"framework", std::string(framework)},
                {"base_model", std::string(model)},
                {"num_gpus", "256"},
                {"global_batch", "2048"},
                {"pp", std::to_string(pp)},
                {"vpp", std::to_string(vpp)},
                {"ep", "8"}};
    for (const char* column : {"layers", "hidden", "heads", "ffn", "vocab"}) cells[column] = "";
    return read(cells).inputs->plan.pipeline_layout;
  };
  const std::string bridge = "Megatron-Bridge (NeMo 26.02)";
  const auto from_the_front = [](std::size_t stages, int each, int left) {
    Layers expected(stages, each);
    expected.back() = left;
    return expected;
  };
  CHECK(layers(bridge, "deepseek-v3", 4, 4) == from_the_front(16, 4, 1));
  CHECK(layers(bridge, "deepseek-v3", 16, 1) == from_the_front(16, 4, 1));
  CHECK(layers(bridge, "kimi-k2", 8, 1) == from_the_front(8, 8, 5));
  CHECK(layers(bridge, "deepseek-v3", 4, 1) == Layers{16, 16, 16, 13});
  for (const char* model : {"deepseek-v3", "kimi-k2"}) {
    Layers expected(32, 2);
    expected.front() = 1;
    expected.back() = 0;
    CHECK(layers(bridge, model, 16, 2) == expected);
  }
  // NeMo counts embedding, loss and what predicts further ahead as layers (first 3, last 2).
  Layers counted(16, 4);
  counted.front() = 3;
  counted.back() = 2;
  CHECK(layers("NeMo", "deepseek-v3", 16, 1) == counted);
  CHECK(layers(bridge, "qwen3-235b-a22b", 4, 12).front() == 1);
}

TEST_CASE("NeMo AutoModel with experts keeps parameters gathered and deals tokens out in turn") {
  const auto run = read({{"recipe", "fsdp2"},
                         {"framework", "NeMo AutoModel (PyTorch FSDP2)"},
                         {"zero", "3"},
                         {"experts", "8"},
                         {"topk", "2"},
                         {"moe_ffn", "1024"},
                         {"ep", "8"},
                         {"dispatcher", "deepep"},
                         {"other_flags", "TE + DeepEP, fake balanced gate"}});
  REQUIRE(run.inputs);
  CHECK(run.inputs->recipe == RecipeKind::megatron_fsdp);
  CHECK(run.inputs->plan.zero == 1);
  CHECK(run.inputs->plan.routing == Routing::in_turn);
  CHECK(run.inputs->plan.grad_dtype == DType::bf16);
}

TEST_CASE("torch.compile under FSDP1 is torch.compile, with gradients reduced in bf16") {
  const auto run = read({{"recipe", "fsdp1"}, {"other_flags", "torch.compile"}});
  REQUIRE(run.inputs);
  CHECK(run.inputs->recipe == RecipeKind::fsdp2_compile);
  CHECK(run.inputs->plan.grad_dtype == DType::bf16);
}

TEST_CASE("Composer's DEFAULT reduces FSDP1's gradients in fp32, PURE and silence in bf16") {
  const auto reduced = [](const char* words) {
    const auto run = read({{"recipe", "fsdp1"}, {"zero_or_fsdp", words}});
    REQUIRE(run.inputs);
    return run.inputs->plan.grad_dtype;
  };
  CHECK(reduced("FSDP FULL_SHARD mp=DEFAULT") == DType::fp32);
  CHECK(reduced("FSDP FULL_SHARD mp=PURE") == DType::bf16);
  CHECK(reduced("") == DType::bf16);
}

TEST_CASE("a log that names another memory means the machine that has it") {
  const auto machine = [](const char* gpu) {
    return read({{"hardware", "h100-sxm"}, {"gpu", gpu}}).inputs->hardware;
  };
  CHECK(machine("H100") == "h100-sxm");
  CHECK(machine("H100-79GiB") == "h100-sxm");
  CHECK(machine("H100-95GiB") == "h100-96gb-hbm2e-500w");
  CHECK(machine("H100-50GiB") == "h100-sxm");  // none has that
}

TEST_CASE("the optimizer's fp32 copy of gradients is not the buffer that they are summed in") {
  const auto format = [](const char* flags) {
    return read({{"other_flags", flags}}).inputs->plan.grad_dtype;
  };
  CHECK(format("bf16 grad reduce, fp32 main grads/params/moments") == DType::bf16);
  CHECK(format("fp32 main grads/params/moments") == DType::fp32);
}

TEST_CASE("a flag that nobody has looked at is named") {
  CHECK(read({{"other_flags", "force-balance, TE + DeepEP, warp drive"}}).unknown_flags ==
        std::vector<std::string>{"warp drive"});
}

TEST_CASE("a base model keeps its details and takes the row's sizes") {
  const ModelSpec proxy = read({{"base_model", "deepseek-v3"},
                                {"layers", "5"},
                                {"hidden", "7168"},
                                {"heads", "128"},
                                {"ffn", "18432"},
                                {"vocab", "129280"},
                                {"experts", "256"},
                                {"topk", "8"},
                                {"moe_ffn", "2048"}})
                              .inputs->model;
  const ModelSpec whole = load_model("deepseek-v3");
  CHECK(proxy.mla == whole.mla);
  CHECK(proxy.moe == whole.moe);
  REQUIRE(proxy.layers.size() == 5);
  CHECK_FALSE(proxy.layers[2].moe);  // its three dense layers stay first
  CHECK(proxy.layers[3].moe);
  const ModelSpec fewer = read({{"base_model", "deepseek-v3"},
                                {"layers", "4"},
                                {"hidden", ""},
                                {"heads", ""},
                                {"ffn", ""},
                                {"vocab", ""},
                                {"notes", "dense_layers=1 of 4; proxy"}})
                              .inputs->model;
  CHECK(fewer.num_mtp_layers == 0);
  CHECK_FALSE(fewer.layers[0].moe);
  CHECK(fewer.layers[1].moe);
}

TEST_CASE("a row that says nothing of its model but a built-in one's name is of that model") {
  Cells cells{{"model", "Nemotron-3-Nano-30B-A3B"}, {"ep", "8"}};
  for (const char* said : {"layers", "hidden", "heads", "ffn", "vocab"}) cells[said] = "";
  const MeasuredRun run = read(cells);
  REQUIRE(run.inputs.has_value());
  CHECK(run.inputs->model.layers == load_model("nemotron-3-nano-30b-a3b").layers);
  CHECK(run.inputs->model.mlp == MlpKind::relu2);  // whatever the column holds for most rows
  cells["hidden"] = "2688";
  CHECK_FALSE(read(cells).inputs.has_value());
  cells["hidden"] = "";
  cells["model"] = "Nemotron-3.5-Lightning";
  CHECK(read(cells).unpriced ==
        "no base_model, and the architecture columns lack layers, hidden, vocab");
  // Graphs of Mamba-2's layers, alone or with others.
  cells["model"] = "Nemotron-3-Nano-30B-A3B";
  const auto graphs = [&](const std::string& modules) {
    cells["other_flags"] = "cuda_graph=transformer_engine:" + modules;
    const ParallelPlan plan = read(cells).inputs->plan;
    CHECK(plan.cuda_graph);
    return plan.cuda_graph_scope;
  };
  CHECK(graphs("mamba") == CudaGraphScope::mamba);
  CHECK(graphs("attn+mamba+moe_router+moe_preprocess") == CudaGraphScope::layer);
}

TEST_CASE("without a base model the columns make a decoder of their kind") {
  const ModelSpec llama = read({{"kv_heads", "2"}}).inputs->model;
  CHECK(llama.num_key_value_heads == 2);
  CHECK(llama.head_dim == 128);
  CHECK(llama.position == PositionEmbedding::rope);
  CHECK_FALSE(llama.tie_word_embeddings);
  const ModelSpec gpt = read({{"mlp", "gelu"}, {"norm", "layernorm"}, {"vocab", ""}}).inputs->model;
  CHECK(gpt.tie_word_embeddings);
  CHECK(gpt.vocab_size == 51200);
  CHECK(gpt.mlp_bias);
}

TEST_CASE("the total of parameters gives what no column does") {
  // 8 x (4 x 1024^2 + 3 x 1024 x 4096) + 2 x 32000 x 1024 = 0.2 billion.
  CHECK(read({{"layers", ""}, {"params_b", "0.2"}}).inputs->model.num_layers == 8);
  // Experts on every second layer: 4 x 4 x 3 x 1024 x 4096 and 4 dense layers are 0.35 billion.
  const ModelSpec m =
      read({{"experts", "4"}, {"topk", "1"}, {"moe_ffn", "4096"}, {"params_b", "0.35"}})
          .inputs->model;
  CHECK_FALSE(m.layers[0].moe);
  CHECK(m.layers[1].moe);
  CHECK(
      read({{"experts", "64"}, {"topk", "1"}, {"moe_ffn", "4096"}, {"params_b", "0.2"}}).unpriced ==
      "no base_model, and the architecture columns do not add up to params_b: 0.2B");
}

TEST_CASE("what a token uses besides its routed experts are shared ones") {
  // Two of the eight experts of 3 x 1024 x 4096 a layer: 0.3 billion with attention and words. One
  // shared expert more is 0.4 billion; a total that is rounded to 0.32 tells of none.
  const auto shared = [](const char* active) {
    return read({{"experts", "8"}, {"topk", "2"}, {"moe_ffn", "4096"}, {"active_params_b", active}})
        .inputs->model.moe->shared_expert_intermediate_size;
  };
  CHECK(shared("") == 0);
  CHECK(shared("0.32") == 0);
  CHECK(shared("0.4") == 4096);
  CHECK(shared("0.5") == 2 * 4096);
  CHECK(shared("0.35") == 0);  // half an expert
}

TEST_CASE("what was measured is a time, else a rate") {
  CHECK(read({{"step_time_s", "0.5"}, {"tokens_per_s_per_gpu", "1"}}).step_time == Seconds(0.5));
  // 64 x 2048 tokens at 8 x 32768 a second.
  CHECK(read({{"tokens_per_s_per_gpu", "32768"}}).step_time == Seconds(0.5));
  CHECK_FALSE(read({}).step_time);
  const MeasuredRun run = read({{"id", "src-a-b"}, {"mem_gib", "3"}, {"mem_kind", "reserved"}});
  CHECK(run.source == "src");
  CHECK(run.memory == gib(3));
  CHECK(run.memory_kind == MemoryKind::reserved);
}

TEST_CASE("what cannot be asked about says why, and what is no number is refused") {
  CHECK(plan_of({{"recipe", "jax"}}) == "recipe 'jax' is none of those predicted");
  CHECK(plan_of({{"hardware", "abacus"}}) ==
        "hardware 'abacus' is neither built in nor a profile's file (.json)");
  CHECK(plan_of({{"global_batch", ""}}) == "global_batch is not stated");
  CHECK(plan_of({{"tp", "3"}}) == "tp x pp x cp does not divide the GPUs: 3 and 8");
  CHECK(plan_of({{"hidden", "4"}}) == "hidden is smaller than heads");
  CHECK(plan_of({{"layers", "16384"}, {"hidden", "1048576"}, {"vocab", "268435456"}}) ==
        "the architecture columns describe more than 1e15 parameters");
  CHECK_THROWS_WITH_AS(read({{"layers", "8x"}}),
                       "t.csv:2: column layers must be a whole number from 1 to 16384 or empty, "
                       "not '8x'",
                       Error);
  CHECK_THROWS_WITH_AS(read({{"step_time_s", "-1"}}),
                       "t.csv:2: column step_time_s must be a number above 0 or empty, not '-1'",
                       Error);
}

TEST_CASE("every soft rule is one of the table's") {
  std::size_t soft = 0;
  for (const RuleInfo& rule : feasibility_rules()) {
    soft += is_soft_rule(rule.id, RecipeKind::megatron) ? 1U : 0U;
  }
  CHECK(soft == soft_rule_count());
}

TEST_CASE("predictions do not depend on the number of threads") {
  std::vector<MeasuredRun> runs;
  for (const char* tp : {"1", "2", "4", "8", "3"}) runs.push_back(read({{"tp", tp}}));
  const auto one = predict_runs(runs, 1), three = predict_runs(runs, 3);
  REQUIRE(one.size() == runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    CHECK(one[i].unpriced == three[i].unpriced);
    CHECK(one[i].estimate.has_value() == three[i].estimate.has_value());
    if (one[i].estimate) CHECK(one[i].estimate->step_time == three[i].estimate->step_time);
  }
  CHECK(one.back().unpriced == "tp x pp x cp does not divide the GPUs: 3 and 8");
}

TEST_CASE("a failed run with more stages than layers is foreseen by a rule") {
  const MeasuredRun run = read({{"pp", "16"}, {"num_gpus", "16"}, {"status", "failed"}});
  const RunPrediction prediction = predict_runs({run}, 1).front();
  CHECK(prediction.unpriced.empty());
  CHECK_FALSE(prediction.feasible);
  CHECK(prediction.refused.starts_with("rule pipeline_depth: "));
}

}  // namespace

}  // namespace qplan
