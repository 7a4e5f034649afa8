// Every cross-entropy in bytes a logit: how much is there at once, and how much passes.

#include "models/program/loss.h"

#include <doctest/doctest.h>

#include <variant>

#include "framework_blocks.h"
#include "models/program/liveness.h"

namespace qplan::test {
namespace {

struct LossWork {
  double forward = 0, kept = 0, backward = 0;  // bytes a logit at once: peak, between, peak
  double passes = 0;                           // bytes a logit, of memory-bound work as wide
  int messages = 0;
};

LossWork work_of(LossKind loss, const Recipe& recipe, int tp = 1) {
  const ModelSpec model = load_model("llama3-8b");
  BlockShape s = shape_of(model, BlockKind::head);
  s.seq_len = 8192;
  s.tp = tp;
  s.loss = loss;
  const Block block = build_block(model, recipe, s);
  const auto events = liveness(block, {&block.forward, &block.backward});
  LossWork done;
  double held = 0, logits = 0, columns = 0;
  for (const Slot& slot : block.slots) {
    if (slot.name != "logits") continue;
    logits = slot.bytes().value() / 2;
    columns = logits / 8192;
  }
  // Arrays as wide as the vocabulary.
  const auto wide = [&](SlotId id) {
    const double bytes = block.slots[static_cast<std::size_t>(id)].bytes().value();
    return bytes >= 2 * logits && bytes <= 14 * logits ? bytes : 0;
  };
  for (std::size_t pass = 0; pass < 2; ++pass) {
    double& peak = pass == 0 ? done.forward : done.backward;
    for (const LiveEvent& e : events[pass]) {
      held += e.allocate ? wide(e.slot) : -wide(e.slot);
      peak = std::max(peak, held / logits);
    }
    if (pass == 0) done.kept = held / logits;
  }
  for (const OpList* ops : {&block.forward, &block.backward}) {
    for (const Op& op : *ops) {
      const auto* r = std::get_if<Rowwise>(&op.work);
      if (r != nullptr && static_cast<double>(r->cols) == columns) {
        done.passes += memory_traffic(*r).value() / logits;
      }
      const auto* c = std::get_if<Collective>(&op.work);
      done.messages += c != nullptr && c->bytes.value() <= 8192.0 * 12 * tp;
    }
  }
  return done;
}

void check_bytes(LossKind loss, const Recipe& recipe, double forward, double kept, double backward,
                 double passes) {
  CAPTURE(loss);
  const LossWork work = work_of(loss, recipe);
  CHECK(work.forward == doctest::Approx(forward).epsilon(0.001));
  CHECK(work.kept == doctest::Approx(kept).epsilon(0.001));
  CHECK(work.backward == doctest::Approx(backward).epsilon(0.001));
  CHECK(work.passes == doctest::Approx(passes).epsilon(0.001));
}

}  // namespace

TEST_CASE("each loss holds and moves its bytes a logit") {
  const Recipe& megatron = recipe_of(RecipeKind::megatron);
  // 16 bits made fp32 (6), exponentials (8) and probabilities (8) in place; a copy (8), which goes
  // over the probabilities and out in 16 bits (10).
  check_bytes(LossKind::native, megatron, 6, 4, 10, 40);
  // The gradient in fp32 (8), scaled (8) and cast (6).
  check_bytes(LossKind::te, megatron, 6, 4, 6, 22);
  check_bytes(LossKind::unfused, megatron, 6, 4, 6, 58);
  check_bytes(LossKind::te, recipe_of_month(RecipeKind::megatron, 202601), 2, 2, 4, 14);
  check_bytes(LossKind::by_framework, recipe_of(RecipeKind::fsdp2), 6, 4, 12, 58);
  check_bytes(LossKind::compiled, recipe_of(RecipeKind::fsdp2_compile), 2, 2, 4, 14);
  // transformers 5 and 4.
  check_bytes(LossKind::by_framework, recipe_of(RecipeKind::fsdp1), 6, 4, 12, 58);
  check_bytes(LossKind::by_framework, recipe_of_month(RecipeKind::fsdp1, 202501), 10, 10, 14, 58);
  check_bytes(LossKind::by_framework, recipe_of_month(RecipeKind::fsdp1, 202311), 2, 2, 4, 14);
  // LitGPT's: logits and log-softmax in 16 bits; three reads and a write, zeros, a read, three
  // words.
  check_bytes(LossKind::narrow, recipe_of(RecipeKind::fsdp2), 4, 4, 8, 18);
  // Hugging Face's forward has made the logits fp32 before any loss sees them.
  check_bytes(LossKind::fused, recipe_of(RecipeKind::ddp), 6, 4, 8, 14);
}

TEST_CASE("losses of a split vocabulary send what their code sends") {
  const Recipe& megatron = recipe_of(RecipeKind::megatron);
  const auto more = [&](LossKind loss) {
    return work_of(loss, megatron, 2).messages - work_of(loss, megatron).messages;
  };
  CHECK(more(LossKind::unfused) == 3);  // maximum; target logits; sums
  CHECK(more(LossKind::native) == 2);   // maximum; the others together
  CHECK(more(LossKind::te) == 1);       // gathers the three
}

TEST_CASE("layers may be compiled and the loss not, which then keeps what torch's own does") {
  using enum LossKind;
  CHECK(losses_of(RecipeKind::fsdp2_compile).has(eager));
  const Recipe& compiled_layers = recipe_of(RecipeKind::fsdp2_compile);
  const LossTraits loss = traits_of(eager, compiled_layers);
  CHECK_FALSE(loss.fused);
  CHECK(loss.chunks == 1);
  CHECK(loss.kept_bytes == 8);  // logits in fp32 and their log-softmax
  CHECK(traits_of(compiled, compiled_layers).kept_bytes == 0);
}

TEST_CASE("what a framework runs unasked needs no word") {
  const Recipe& megatron = recipe_of(RecipeKind::megatron);
  using enum LossKind;
  CHECK(loss_of(by_framework, false, megatron) == native);
  CHECK(loss_of(by_framework, true, megatron) == unfused);
  CHECK(loss_of(te, true, megatron) == te);
  CHECK(loss_word(native, false, megatron) == by_framework);
  CHECK(loss_word(native, true, megatron) == native);
  CHECK(loss_word(unfused, true, megatron) == by_framework);
  CHECK(loss_word(te, false, megatron) == te);
  for (const auto& [kind, word] : Words<RecipeKind>::table) {
    CHECK(losses_of(kind).has(recipe_of(kind).kernels.loss));
    CHECK_FALSE(losses_of(kind).has(by_framework));
  }
}

}  // namespace qplan::test
