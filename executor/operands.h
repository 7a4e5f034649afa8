#pragma once
// What a command's operands are, whatever executes it: the parameter of a product, the rows of a
// piece, the shard of a state.

#include <optional>

#include "executor/math/activation.h"
#include "executor/rank.h"

namespace qplan {

// A packed parameter as a matrix inside `slot` (weights or gradients).
Tensor parameter_in(const Tensor& slot, const PackedParameter& p);

// A parameter of a command's block: the weight of that role.
const PackedParameter& parameter_with(const Rank& rank, const Command& c, ParameterRole role);

// What a product works with of an operand (weights or gradients).
struct Weight {
  Tensor weight, bias;  // bias.data null: none
};
Weight weight_of(const Rank& rank, const Command& c, const Tensor& slot, std::int64_t out);

// The bias beside a parameter's weight in its block; null where there is none.
const PackedParameter* bias_of(const Rank& rank, const Command& c, const PackedParameter& p);
// Whether this rank adds a product's bias: behind a reduction one rank's is everybody's.
bool adds_bias(const Rank& rank, const PackedParameter& p);

// Whether an op's parameter belongs to an adapter, and which.
Adapter adapter_of(const Rank& rank, const Command& c);
// What a product with an adapter's B works with: its columns of the layer's output (or of that
// one's gradient), its columns of what all A that stand side by side make, and alpha / rank.
struct AdapterView {
  std::int64_t column = 0, width = 0, inner = 0, rank = 0;
  float scale = 1;
  std::int16_t a = kNoParameter;  // the same adapter's A
};
AdapterView adapter_view(const Rank& rank, const Command& c);
// DoRA: the adapter beside a weight that is one of those packed with it.
AdaptedPart adapted_part(const Rank& rank, const Command& c);

// Learned sinks (or their gradients, in `slot`) of the heads that an attention works on: with heads
// exchanged for sequence, a share. has_sinks: attention has no other parameter; they are in the
// last operand that it reads, their gradients in the last that it writes.
bool has_sinks(const Command& c);
Tensor sinks_in(const Rank& rank, const Command& c, const Tensor& slot, std::int64_t heads);

// Whether a copy is of heads that are exchanged for sequence, on their way out or in.
bool moves_heads(const Command& c);

// What an op's block activates with.
math::Activation activation_of(const Rank& rank, const Command& c, RowwiseKind kind);

// What an amax or quantize reads: a parameter, or a whole slot.
Tensor narrowed_operand(const Rank& rank, const Command& c, const Rowwise& work);

// Rows of one piece of an overlapped product: the same piece of every rank's share.
struct Piece {
  std::int64_t ranks = 1, share = 0, first = 0, count = 0;
};
Piece piece_of(const Rank& rank, const Op& op, std::int64_t rows);

// Whether the first slot that is read carries this flow; whether the first that is written is this.
bool reads_flow(const Rank& rank, const Command& c, Flow flow);
bool writes(const Rank& rank, const Command& c, Storage storage, Flow flow = Flow::activation);

// Whether what is gathered ahead are frozen weights.
bool moves_frozen(const Rank& rank, const Command& c);

// The elements of a shard section inside a packed slot, and inside a slot that holds shards only.
Tensor packed_part(const Tensor& slot, const StateShard::Section& section);
Tensor shard_part(const Tensor& slot, const StateShard& shard, bool expert);

// What several ranks make a part of, in the gradients that a command sums: of replicated
// parameters, or of the embedding's table, of which another pipeline rank has a copy. A shard has
// some of it.
Tensor shared_gradient(const Rank& rank, const Command& c);

// The block whose parameters a fully sharded block gathers ahead: the next one, in backward the one
// before.
int neighbour(const Rank& rank, const Command& c);

// Whether a copy brings what this rank alone holds into a block's whole parameters, beside a
// gather.
bool copies_parameters(const Rank& rank, const Command& c);
// Whether no other rank has a part of that section of the parameters gathered ahead.
bool unshared(const Rank& rank, const Command& c, bool expert);

// Whether no other rank holds a part of this section.
bool alone(const Rank& rank, int instance, bool expert);

// Whether an addition brings one microbatch's gradients and what is kept together, ahead of their
// reduction; and of one section, what is added to what. Absent where nothing is: no gradients, or
// another copy of the shard (HSDP) brings what is kept.
bool keeps_gradients(const Rank& rank, const Command& c);
struct GradientSum {
  Tensor from, to;
};
std::optional<GradientSum> kept_sum(const Rank& rank, const Command& c, bool expert);

// The part of a reduction's sum that is this rank's.
Tensor reduced_gradients(const Rank& rank, const Command& c, bool expert);

}  // namespace qplan
