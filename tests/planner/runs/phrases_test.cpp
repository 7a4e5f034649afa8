#include "planner/runs/phrases.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>

#include "models/error.h"
#include "planner/runs/run_tables.h"
#include "tests/planner/runs/rows.h"

namespace qplan {
namespace {

const std::string kPhraseHeader = "column\tmatch\tphrase\twhere\teffect\tnote\tsource\n";

// A table of one row of these cells.
PhraseTable one_phrase(const std::string& where, const std::string& effect,
                       const std::string& source = "a page") {
  return {
      kPhraseHeader + "other_flags\texact\tword\t" + where + '\t' + effect + "\t\t" + source + '\n',
      "t.tsv"};
}

TEST_CASE("every phrase has a source, and stands once in a place") {
  const PhraseTable table(run_table_text("phrases"), "phrases.tsv");
  const auto& phrases = table.phrases();
  CHECK(phrases.size() > 100);
  std::set<std::string> places;
  for (const Phrase& phrase : phrases) {
    CAPTURE(phrase.text);
    CHECK(phrase.source.size() > 10);
    CHECK(places.insert(phrase.column + '\t' + phrase.text + '\t' + phrase.where).second);
  }
}

// A word that two rows take for different things would depend on their order.
TEST_CASE("a whole word of other_flags is none that begins like another phrase") {
  for (const Phrase& phrase : known_phrases().phrases()) {
    if (phrase.column != "other_flags") continue;
    for (const Phrase& other : known_phrases().phrases()) {
      if (other.column != phrase.column || other.text == phrase.text) continue;
      CAPTURE(other.text);
      CHECK_FALSE(phrase.pattern.find(other.text));
    }
  }
}

TEST_CASE("a row that is none is refused with its line") {
  const auto refused = [](const std::string& row, const char* sentence) {
    CHECK_THROWS_WITH_AS(PhraseTable(kPhraseHeader + row, "t.tsv"), sentence, Error);
  };
  refused("colour\texact\tword\t\tvpp1\t\ta page\n",
          "t.tsv:2: 'colour' is no column of measured runs");
  refused("notes\tnearly\tword\t\tvpp1\t\ta page\n",
          "t.tsv:2: match 'nearly' is unknown; choose one of exact, prefix, contains");
  refused("notes\texact\t\t\tvpp1\t\ta page\n", "t.tsv:2: the phrase is empty");
  refused("notes\texact\tword\t\tvpp1\t\t\n", "t.tsv:2: phrase 'word' has no source");
  refused("notes\texact\tword\t\t\t\ta page\n", "t.tsv:2: an effect is empty");
  refused("notes\texact\tword\t\tvpp1\n",
          "t.tsv:2:1: the row has 5 cells, and the header names 7 columns");
  refused(
      "notes\texact\tword\t\tvpp1\t\ta page\n\n# a remark\nnotes\tprefix\tword\t\tvpp2\t\ta page\n",
      "t.tsv:5: phrase 'word' of notes stands here twice");
  CHECK_THROWS_WITH_AS(PhraseTable("column\tphrase\n", "t.tsv"),
                       "t.tsv: the columns must be column, match, phrase, where, effect, note, "
                       "source",
                       Error);
  // The same phrase may mean two things of two kinds of run.
  CHECK(PhraseTable(kPhraseHeader + "notes\texact\tword\tmoe\tvpp1\t\ta page\n"
                                    "notes\texact\tword\t!moe\tvpp2\t\ta page\n",
                    "t.tsv")
            .phrases()
            .size() == 2);
}

TEST_CASE("an effect or a condition that is none is refused") {
  for (const char* effect :
       {"warp=9", "loss=warp", "vpp1 vpp2", "overlap=+warp", "overlap=+", "recipe=jax",
        "month=202413", "mtp_layers", "nothing=1", "fabric=tin cans", "vpp1  vpp2"}) {
    CAPTURE(effect);
    CHECK_THROWS_AS(one_phrase("", effect), Error);
  }
  for (const char* where :
       {"colour=red", "recipe=jax", "recipe~fsdp", "release<26", "release~26.02", "warp",
        "compute_capability=warp", "compute_capability~90", "framework<26", "moe;", "moe; ; mla"}) {
    CAPTURE(where);
    CHECK_THROWS_AS(one_phrase(where, "vpp1"), Error);
  }
}

// What a row with this one phrase becomes.
RunInputs applied(const std::string& where, const std::string& effect, const Cells& changes = {},
                  const char* text = "word") {
  const CsvTable table = one_run(changes);
  const RunRow row(table, table.rows.front());
  std::vector<std::string> unknown;
  RunInputs in = inputs_of_run(row, unknown);
  const PhraseTable phrases = one_phrase(where, effect);
  phrases.apply_to_model("other_flags", text, row, in);
  CHECK(phrases.apply("other_flags", text, row, in).known);
  return in;
}

TEST_CASE("effects do what they say") {
  const ParallelPlan plan = applied("", "loss=te grad_dtype=bf16 capacity=1 zero2").plan;
  CHECK(plan.loss == LossKind::te);
  CHECK(plan.grad_dtype == DType::bf16);
  CHECK(plan.moe_capacity_factor == 1);
  CHECK(plan.zero == 2);
  // The row's overlap is grad and param.
  CHECK(to_string(applied("", "overlap=+tp+ep-grad").plan).ends_with("overlap=tp+param+ep"));
  CHECK(applied("", "overlap=-grad-param").plan.overlap.empty());
  CHECK(applied("", "recipe=nanotron").recipe == RecipeKind::nanotron);
  CHECK(applied("", "month=202405").month == 202405);
  CHECK(applied("", "documents=512").plan.document_len == 512);
  CHECK(applied("", "documents=4096").plan.document_len == 2048);  // a sequence
  CHECK(applied("", "mtp_layers=2").model.num_mtp_layers == 2);
  CHECK(applied("", "mtp_passes=2").model.mtp_passes == 1);  // of a model that predicts one token
  CHECK(applied("", "every_2nd_layer").plan.recompute == parse_recompute("full:4"));
  CHECK(applied("", "fill_from_front").fills_from_front);
  CHECK(applied("", "memory_of=first_stage").memory_of == MemoryOf::first_stage);
  CHECK_FALSE(applied("", "fabric=efa").network);
  const Cells linked{{"inter_node_link", "400 Gb/s"}};
  CHECK(applied("", "fabric=efa", linked).network->fabric == Fabric::efa);
  CHECK(applied("", "nothing").plan == read({}).inputs->plan);
}

TEST_CASE("effects that read on take what follows the phrase") {
  const auto in = [](const char* effect, const char* text, const Cells& changes) {
    const CsvTable table = one_run(changes);
    const RunRow row(table, table.rows.front());
    std::vector<std::string> unknown;
    RunInputs inputs = inputs_of_run(row, unknown);
    const PhraseTable phrases(
        kPhraseHeader + "other_flags\tcontains\tword=\t\t" + effect + "\t\ta page\n", "t.tsv");
    phrases.apply_to_model("other_flags", text, row, inputs);
    phrases.apply("other_flags", text, row, inputs);
    return inputs;
  };
  const Cells experts{{"experts", "8"}, {"topk", "2"}, {"moe_ffn", "512"}};
  const ModelSpec model = in("dense_layers", "proxy; word=3 of 8", experts).model;
  CHECK_FALSE(model.layers[2].moe);
  CHECK(model.layers[3].moe);
  CHECK(in("megatron_layout", "word=Ett|tttttt|L", {}).plan.pipeline_layout ==
        std::vector<int>{2, 6, 0});
  CHECK(in("graphs", "word=attn", {}).plan.cuda_graph_scope == CudaGraphScope::layer);
  CHECK(in("graphs", "word=moe_router", {}).plan.cuda_graph_scope == CudaGraphScope::router);
}

TEST_CASE("conditions hold of what they say") {
  const auto holds = [](const std::string& where, const Cells& changes = {}) {
    return applied(where, "seq7", changes).plan.seq_len == 7;
  };
  CHECK(holds(""));
  CHECK(holds("recipe=megatron"));
  CHECK(holds("recipe=fsdp1|megatron"));
  CHECK_FALSE(holds("recipe=fsdp1"));
  CHECK(holds("recipe=megatron_fsdp", {{"fsdp", "fsdp"}}));  // as it is predicted
  CHECK(holds("norm=rmsnorm"));
  CHECK_FALSE(holds("!norm=rmsnorm"));
  CHECK(holds("notes=; !notes~packed"));
  CHECK(holds("notes~packed", {{"notes", "SFT, packed"}}));
  CHECK_FALSE(holds("moe"));
  CHECK_FALSE(holds("hybrid"));
  CHECK(holds("moe; !mla", {{"experts", "8"}, {"topk", "2"}, {"moe_ffn", "512"}}));
  CHECK(holds("zero1; vpp1; !ep2"));
  CHECK_FALSE(holds("zero1; vpp2"));
  CHECK(holds("compute_capability=90; nvlink_domain<72; memory_gib<90"));
  CHECK_FALSE(holds("compute_capability>=100"));
  CHECK(holds("compute_capability>=100", {{"hardware", "b200"}}));
  const Cells november{{"framework", "NeMo 25.11"}};
  CHECK(holds("release=25.11; release>=25.11; release<25.12", november));
  CHECK_FALSE(holds("release<25.11", november));
  // A run that names none is neither before nor after one.
  CHECK_FALSE(holds("release<25.11"));
  CHECK_FALSE(holds("release>=25.11"));
}

TEST_CASE("phrases of other_flags and of their own columns are read of a row") {
  CHECK(read({{"inter_node_link", "EFA 3200 Gb/s per node"}}).inputs->network->fabric ==
        Fabric::efa);
  CHECK(read({{"inter_node_link", "4x Omni-Path 100Gb per node"}}).inputs->network->fabric ==
        Fabric::omni_path);
  CHECK(read({{"inter_node_link", "4x Omni-Path 100Gb per node"}}).inputs->network->nvlinks == 4);
  CHECK(read({{"inter_node_link", "8x Omni-Path 100Gb per node"}}).inputs->network->nvlinks == 0);
  CHECK(read({{"inter_node_link", "400 Gb/s"}}).inputs->network->fabric == Fabric::infiniband);
  const auto recompute = [](const Cells& changes) {
    return to_string(read(changes).inputs->plan.recompute);
  };
  CHECK(recompute({{"recompute", "selective layer (every 2nd layer)"},
                   {"recompute_words", "selective"}}) == "full:4");
  CHECK(recompute({{"recompute", "selective (FSDP AC)"}, {"recompute_words", "selective"}}) ==
        "full");
  CHECK(recompute({{"recompute_words", "selective"}}) == "selective");
  CHECK(recompute({{"recompute_words", "selective:norm+act"}}) == "selective:layernorm");
  const RunInputs mtp = *read({{"base_model", "deepseek-v3"},
                               {"other_flags", "no MTP"},
                               {"layers", ""},
                               {"hidden", ""},
                               {"heads", ""},
                               {"ffn", ""},
                               {"vocab", ""}})
                             .inputs;
  CHECK(load_model("deepseek-v3").num_mtp_layers == 1);
  CHECK(mtp.model.num_mtp_layers == 0);
}

// SDPA's libraries in torchtitan's own order: 2025-05 on Blackwell, 2025-10 everywhere; flex since.
TEST_CASE(
    "torchtitan asks for cuDNN's attention from a month on, and what is eager is not compiled") {
  const auto run = [](const char* hardware, const char* page, const char* flags = "torch.compile") {
    return *read({{"recipe", "fsdp2_compile"},
                  {"framework", "torchtitan"},
                  {"source_path_or_table", page},
                  {"hardware", hardware},
                  {"other_flags", flags}})
                .inputs;
  };
  const auto backend = [&](const char* hardware, const char* page) {
    return run(hardware, page).plan.attention_backend;
  };
  CHECK(backend("b200", "a page of 2025-05") == AttentionBackend::automatic);
  CHECK(backend("b200", "a page of 2025-06") == AttentionBackend::fused);
  CHECK(backend("h100-sxm", "a page of 2025-06") == AttentionBackend::automatic);
  CHECK(backend("h100-sxm", "a page of 2026-01") == AttentionBackend::fused);
  CHECK(backend("gb200", "a page of 2026-07") == AttentionBackend::automatic);
  CHECK(backend("gb200", "a page") == AttentionBackend::automatic);
  CHECK(run("gb200", "a page of 2026-01").recipe == RecipeKind::fsdp2_compile);
  for (const char* flags : {"eager", "eager (compile default false)"}) {
    const RunInputs eager = run("gb200", "a page of 2026-01", flags);
    CHECK(eager.recipe == RecipeKind::fsdp2);
    CHECK_FALSE(eager.plan.compile);
    CHECK(eager.plan.attention_backend == AttentionBackend::fused);
  }
  // fsdp2 has no pipeline.
  CHECK(read({{"recipe", "fsdp2_compile"}, {"pp", "2"}, {"other_flags", "eager"}}).inputs->recipe ==
        RecipeKind::fsdp2_compile);
}

}  // namespace
}  // namespace qplan
