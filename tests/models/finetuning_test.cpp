// What fine-tuning with Hugging Face's modules holds: FSDP1 beside frozen weights, norms in fp32
// beside bitsandbytes' layers, kernels that stand for several of torch's.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "costmodel/fold/block_cost.h"
#include "models/plan/parallel_plan.h"
#include "models/program/loss.h"
#include "tests/models/framework_blocks.h"

using namespace qplan;
using namespace qplan::test;

namespace {

BlockShape layer_of(const ModelSpec& model, RecipeKind recipe, const std::string& words) {
  BlockShape s = base_shape(model, parse_plan(words), recipe_of(recipe), 1);
  s.kind = BlockKind::decoder;
  s.layer = model.layers.back();
  s.recompute = parse_plan(words).recompute.kind;
  return s;
}

// transformers 4's last year.
constexpr int kTransformers4 = 202512;

Block block_of(const ModelSpec& model, RecipeKind recipe, const std::string& words, int month = 0) {
  return build_block(model, recipe_of_month(recipe, month), layer_of(model, recipe, words));
}

Bytes staying(const ModelSpec& model, RecipeKind recipe, const std::string& words,
              int month = kTransformers4) {
  const Block block = block_of(model, recipe, words, month);
  Bytes sum;
  for (const SlotId id : block.until_backward_ends) {
    sum += block.slots[static_cast<std::size_t>(id)].bytes();
  }
  return sum;
}

const Slot& slot_of(const Block& block, std::string_view name) {
  for (const Slot& slot : block.slots) {
    if (slot.name == name) return slot;
  }
  FAIL("no slot ", std::string(name));
  return block.slots.front();
}

}  // namespace

TEST_CASE("FSDP1 keeps every frozen layer's input, and its gradient, until backward has ended") {
  const ModelSpec model = load_model("llama3-8b");
  const std::string plan = "dp2 gbs2 seq1024 ";
  // 1024 x 4096 numbers of 16 bits, twice.
  CHECK(staying(model, RecipeKind::fsdp1, plan + "zero3 recompute=full lora8") == mib(16));
  CHECK(staying(model, RecipeKind::fsdp1, plan + "zero3 recompute=full lora8", 0) == Bytes());
  CHECK(staying(model, RecipeKind::fsdp1, plan + "zero3 recompute=full") == Bytes());
  CHECK(staying(model, RecipeKind::fsdp1, plan + "zero3 lora8") == Bytes());
  CHECK(staying(model, RecipeKind::fsdp1, "gbs2 seq1024 zero3 recompute=full lora8") == Bytes());
  CHECK(staying(model, RecipeKind::fsdp2, plan + "zero3 recompute=full lora8") == Bytes());
  CHECK(staying(model, RecipeKind::ddp, plan + "zero0 recompute=full lora8") == Bytes());
}

TEST_CASE("hidden states are fp32 where PEFT prepares a model of bitsandbytes' layers") {
  const ModelSpec model = load_model("llama3-8b");
  const auto format = [&](const std::string& words, std::string_view slot) {
    return slot_of(block_of(model, RecipeKind::ddp, "gbs1 seq1024 zero0 lora8 " + words), slot)
        .dtype;
  };
  for (const char* slot : {"x", "y", "x2", "mlp gate"}) {
    CAPTURE(slot);
    CHECK(format("frozen=nf4 fp32_norms", slot) == DType::fp32);
    CHECK(format("frozen=nf4", slot) == DType::bf16);
    // GPTQ's models are left as they are, and so is one that is not quantised.
    CHECK(format("frozen=int4 fp32_norms", slot) == DType::bf16);
    CHECK(format("fp32_norms", slot) == DType::bf16);
  }
  CHECK(format("frozen=nf4 fp32_norms", "q") == DType::bf16);
}

TEST_CASE("kernels that a plan names stand for torch's own, and keep no copies in fp32") {
  const ModelSpec model = load_model("llama3-8b");
  const auto unfused = [&](const std::string& words) {
    const BlockShape s = layer_of(model, RecipeKind::ddp, "gbs1 seq1024 zero0 " + words);
    return count_rowwise(model, RecipeKind::ddp, s,
                         [](const Rowwise& r) { return !r.fused && r.kind != RowwiseKind::add; });
  };
  const auto copies = [&](const std::string& words, std::string_view name) {
    const Block block = block_of(model, RecipeKind::ddp, "gbs1 seq1024 zero0 " + words);
    return std::count_if(block.slots.begin(), block.slots.end(),
                         [name](const Slot& slot) { return slot.name == name; });
  };
  // Two norms, one rotation and SwiGLU, there and back.
  CHECK(unfused("") == 8);
  CHECK(unfused("module_kernels=norms") == 2);
  CHECK(unfused("module_kernels=all") == 0);
  CHECK(copies("", "norm in fp32") == 2);
  CHECK(copies("module_kernels=norms", "norm in fp32") == 0);
  CHECK(copies("module_kernels=norms", "silu") == 1);
  CHECK(copies("module_kernels=all", "silu") == 0);
}

TEST_CASE("torch's AdamW holds the roots of all second moments at once, a fused one nothing") {
  const ModelSpec model = load_model("llama3-8b");
  const auto held = [&](RecipeKind recipe, const std::string& words, int month = kTransformers4) {
    return persistent_bytes(
        build_states(model, recipe_of_month(recipe, month), layer_of(model, recipe, words)));
  };
  const double layer = 218112000;  // parameters
  const auto ddp = held(RecipeKind::ddp, "gbs1 seq1024 zero0");
  CHECK(ddp.update.value() == doctest::Approx(4 * layer).epsilon(1e-6));
  CHECK(ddp.optimizer.value() == doctest::Approx(12 * layer).epsilon(1e-6));
  // Weights of 16 bits are updated where they are.
  const auto narrow =
      held(RecipeKind::ddp, "gbs1 seq1024 zero0 main_params_dtype=bf16 moment_dtype=bf16");
  CHECK(narrow.update.value() == doctest::Approx(2 * layer).epsilon(1e-6));
  CHECK(narrow.optimizer.value() == doctest::Approx(4 * layer).epsilon(1e-6));
  CHECK(held(RecipeKind::fsdp1, "dp2 gbs2 seq1024 zero3").update.value() ==
        doctest::Approx(4 * layer / 2).epsilon(1e-6));
  CHECK(held(RecipeKind::megatron, "gbs1 seq1024 zero1").update == Bytes());
  CHECK(held(RecipeKind::ddp, "gbs1 seq1024 zero0", 0).update == Bytes());
  // DeepSpeed's step has a rank's half of the gradients flat and in fp32, stage 3 in pieces.
  const std::string halves = "dp2 gbs2 seq1024 grad_dtype=bf16 ";
  CHECK(held(RecipeKind::deepspeed, halves + "zero2", 0).update.value() ==
        doctest::Approx((2 + 4) * layer / 2).epsilon(1e-6));
  CHECK(held(RecipeKind::deepspeed, halves + "zero1", 0).update ==
        held(RecipeKind::deepspeed, halves + "zero2", 0).update);
  CHECK(held(RecipeKind::deepspeed, halves + "zero3", 0).update == Bytes());
}

// Bytes a token that one layer keeps for backward, as torch's autograd saves them under autocast
// (saved_tensors_hooks, transformers 5.24, PEFT 0.21.2, on a CPU): a Llama 1024 wide, 4096 in the
// MLP, 8 heads of 128 and 2 for keys, adapters of rank 16 in fp32.
TEST_CASE("a layer keeps for backward what autograd saves, and less beside frozen norms") {
  ModelSpec model = load_model("llama3-8b");
  model.hidden_size = 1024;
  model.intermediate_size = 4096;
  model.num_attention_heads = 8;
  model.num_key_value_heads = 2;
  model.head_dim = 128;
  const double tokens = 16384;
  const auto kept = [&](const std::string& words) {
    const Block block = block_of(model, RecipeKind::ddp, "mbs4 gbs4 seq4096 zero0 " + words);
    double bytes = 0;
    const auto events = liveness(block, {&block.forward, &block.backward});
    for (const LiveEvent& e : events.front()) {
      const Slot& slot = block.slots[static_cast<std::size_t>(e.slot)];
      bytes += (e.allocate ? 1 : -1) * slot.bytes().value();
    }
    return bytes / tokens;
  };
  const std::string lora = "lora16 lora_dtype=fp32 lora_targets=q_proj+k_proj+v_proj+o_proj";
  // Less what autocast makes of the adapters' matrices: 480 and 1384 bytes a token of the 512 that
  // were counted.
  CHECK(kept("") == doctest::Approx(54312).epsilon(0.001));
  CHECK(kept(lora) == doctest::Approx(46248).epsilon(0.002));
  CHECK(kept(lora + "+gate_proj+up_proj+down_proj") == doctest::Approx(58624).epsilon(0.002));
  // bitsandbytes' layers hand every adapter the array that is there: three copies of the hidden
  // states fewer, less the one that they share.
  CHECK(kept(lora) - kept(lora + " frozen=nf4") == doctest::Approx(3 * 2048).epsilon(0.001));
}

TEST_CASE("DeepSpeed's buckets are there in backward, and not in the step") {
  const ModelSpec model = load_model("llama3-8b");
  const Block block = block_of(model, RecipeKind::deepspeed, "dp2 gbs2 seq1024 zero2");
  const Slot& buckets = slot_of(block, "reduction buckets");
  CHECK(buckets.bytes() == Bytes(2.0 * 2 * 500000000));
  CHECK(buckets.storage == Storage::local);
  CHECK(memory_use(block, liveness(block, {&block.forward, &block.backward}).back()).peak >=
        buckets.bytes());
  CHECK(memory_use(block, liveness(block, {&block.update}).front()).peak < buckets.bytes());
}

TEST_CASE("Liger's loss runs in parts as many as the vocabulary is wider than hidden states") {
  const LossTraits liger = traits_of(LossKind::liger, recipe_of(RecipeKind::ddp));
  // 128,256 words of 4096: 32 parts; 32,000: 8.
  CHECK(loss_parts(load_model("llama3-8b"), liger, 16384).count == 32);
  CHECK(loss_parts(load_model("llama2-7b"), liger, 16384).count == 8);
  CHECK(loss_parts(load_model("llama2-7b"), liger, 7).count == 7);
}

// 5000 tokens over 32 are 157, rounded up 256: 19 parts of them, and one of what is left.
TEST_CASE("the last part of Liger's loss has what is left of the tokens") {
  const ModelSpec model = load_model("llama3-8b");
  const Recipe& recipe = recipe_of(RecipeKind::ddp);
  const LossParts parts = loss_parts(model, traits_of(LossKind::liger, recipe), 5000);
  CHECK(parts.count == 20);
  CHECK(parts.rows == 256);
  BlockShape s = shape_of(model, BlockKind::head);
  s.seq_len = 5000;
  s.loss = LossKind::liger;
  std::vector<std::int64_t> rows;
  for (const Slot& slot : build_block(model, recipe, s).slots) {
    if (slot.name == "logits") rows.push_back(slot.shape[0]);
  }
  REQUIRE(rows.size() == 20);
  CHECK(rows.front() == 256);
  CHECK(rows.back() == 136);
  CHECK(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) == 5000);
}

// GptOssExperts of transformers 5 (modeling_gpt_oss.py).
TEST_CASE("gpt-oss's experts by Hugging Face's modules look biases up and gate in parts") {
  const ModelSpec model = load_model("gpt-oss-20b");
  BlockShape s = shape_of(model, BlockKind::decoder);
  const auto count = [&](const ModelSpec& of, const Recipe& recipe, RowwiseKind kind) {
    return count_rowwise(of, recipe, s, [kind](const Rowwise& r) { return r.kind == kind; });
  };
  for (const RecipeKind kind : {RecipeKind::ddp, RecipeKind::deepspeed, RecipeKind::fsdp2}) {
    CAPTURE(to_word(kind));
    const Recipe& recipe = recipe_of(kind);
    CHECK(count(model, recipe, RowwiseKind::embedding) == 2);
    CHECK(count_rowwise(model, recipe, s, [](const Rowwise& r) {
            return r.kind == RowwiseKind::index_put && r.chain == 512 * 4 / 32;
          }) == 2);
    CHECK(count(model, recipe, RowwiseKind::clamp) == 1);
    CHECK(count(model, recipe, RowwiseKind::clamp_backward) == 1);
    CHECK(count(load_model("qwen3-30b-a3b"), recipe, RowwiseKind::clamp) == 0);
  }
  // Both halves clamped, the sigmoid and its product: 4 arrays of 4 copies of 512 tokens.
  double kept = 0;
  for (const Slot& slot : build_block(model, recipe_of(RecipeKind::ddp), s).slots) {
    if (slot.name == "clamped expert up" || slot.name == "parts of the gate") {
      kept += slot.bytes().value();
    }
  }
  CHECK(kept == 4.0 * 4 * 512 * 2880 * 2);
  CHECK(count(model, recipe_of(RecipeKind::megatron), RowwiseKind::embedding) == 0);
  // transformers 4 runs expert by expert, as Megatron's passes are priced.
  const Recipe early = recipe_of_month(RecipeKind::ddp, 202509);
  CHECK(count(model, early, RowwiseKind::embedding) == 0);
  s.frozen = true;  // beside adapters
  CHECK(count_rowwise(model, recipe_of(RecipeKind::ddp), s, [](const Rowwise& r) {
          return r.kind == RowwiseKind::index_put && r.chain > 0;
        }) == 0);
}

// grouped_mm_experts_forward (integrations/moe.py, transformers 5.17). What autograd keeps was
// counted on a CPU: saved_tensors_hooks around one layer of 256 tokens under autocast.
TEST_CASE("experts by Hugging Face's modules weigh rows by kernels of their own, and keep them") {
  for (const auto& [name, kept] :
       {std::pair{"qwen3-30b-a3b", 194'164.0}, std::pair{"qwen2-57b-a14b", 523'698.0}}) {
    CAPTURE(name);
    const ModelSpec model = load_model(name);
    const Recipe& recipe = recipe_of(RecipeKind::ddp);
    BlockShape s = shape_of(model, BlockKind::decoder);
    const auto count = [&](const Recipe& of, RowwiseKind kind) {
      return count_rowwise(model, of, s, [kind](const Rowwise& r) { return r.kind == kind; });
    };
    for (const RowwiseKind kind :
         {RowwiseKind::halves_swiglu, RowwiseKind::halves_swiglu_backward, RowwiseKind::weigh_rows,
          RowwiseKind::weigh_rows_backward, RowwiseKind::permute, RowwiseKind::unpermute}) {
      CAPTURE(to_word(kind));
      CHECK(count(recipe, kind) == 1);
    }
    CHECK(count(recipe, RowwiseKind::index_put) == 2);  // of both lookups
    CHECK(count(recipe_of(RecipeKind::megatron), RowwiseKind::weigh_rows) == 0);
    const Block block = build_block(model, recipe, s);
    const double a_token =
        memory_of(block, BackwardForm::whole).forward.net.value() / as_double(s.seq_len);
    CHECK(a_token == doctest::Approx(kept).epsilon(0.03));
  }
}

// eager_attention_forward: scale, mask, cast; gpt-oss's sinks beside them.
TEST_CASE("eager attention of Hugging Face's modules passes over the scores kernel by kernel") {
  const auto over_scores = [](const char* name, RecipeKind kind) {
    const ModelSpec model = load_model(name);
    BlockShape s = shape_of(model, BlockKind::decoder);
    s.attention_backend = AttentionBackend::unfused;
    const std::int64_t rows = s.micro_batch_size * model.num_attention_heads * s.seq_len;
    return count_rowwise(model, recipe_of(kind), s,
                         [&](const Rowwise& r) { return r.rows == rows && r.cols == s.seq_len; });
  };
  CHECK(over_scores("llama3-8b", RecipeKind::ddp) == 5);
  CHECK(over_scores("gpt-oss-20b", RecipeKind::ddp) == 11);
  CHECK(over_scores("llama3-8b", RecipeKind::megatron) == 0);
}

TEST_CASE("parallel adapters read what overlapped products have brought together") {
  const ModelSpec model = load_model("llama3-8b");
  const auto adapters = [&](const std::string& words) {
    const Block block =
        block_of(model, RecipeKind::megatron,
                 "tp2 sp gbs1 seq1024 lora8 lora_targets=q_proj+k_proj+v_proj " + words);
    std::vector<Gemm> products;
    for (const Op& op : block.forward) {
      const auto* gemm = std::get_if<Gemm>(&op.work);
      if (gemm != nullptr && op.pieces <= 1 && op.parameter != kNoParameter &&
          block.parameters[static_cast<std::size_t>(op.parameter)].whole.adapter != Adapter::none) {
        products.push_back(*gemm);
      }
    }
    return products;
  };
  CHECK(adapters("").size() == 2);
  CHECK(adapters("overlap=tp") == adapters(""));
}
