// The gated delta rule token by token. With decay a, strength b and scale s = 1 / sqrt(key_dim):
//
//   S = a S;   e = v - S^T k;   S += b k e^T;   out = s S^T q
//
// A state's columns need nothing of each other: blocks have 32 of them. Backward, D being the
// gradient of the state that a token leaves,
//
//   D += s q dout^T;   de = b D^T k;   dv = de;   D -= k de^T;   D = a D
//
// goes through the tokens from behind, by columns and without S. Once e and D^T k are known, what
// is added to S and D is, and their rows need nothing of each other either:
//
//   dq = s S dout;   dk = b D e - S de, D before and S without what the token takes off and adds.
//
// So no state is stored, and nobody adds up what blocks made of one number. The decay's gradient is
// the product <D, S> between tokens: it grows, from the end on, by out . dout - v . dv a token.

#include "kernels/recurrence.cuh"

namespace qplan::kernels {
namespace {

// Of a token and value head, in fp32.
struct Between {
  float *error, *derror;           // e, and D^T k: (rows, value_heads * value_dim)
  float *dq, *dk_read, *dk_added;  // (rows, value_heads * key_dim)
};

struct Place {
  std::int64_t begin, head, key_head, first;  // first: of the block's rows of the state
};
__device__ Place place_of(const DeltaRule& r) {
  const std::int64_t sequence = blockIdx.x / r.value_heads, head = blockIdx.x % r.value_heads;
  return {sequence * r.seq_len, head, head / (r.value_heads / r.key_heads),
          std::int64_t{blockIdx.y} * kStateRows};
}

__device__ float scale_of(const DeltaRule& r) {
  return rsqrtf(static_cast<float>(r.key_dim));
}

// Decays and strengths of the tokens that come; on the way back a token's state has been decayed by
// the one that is walked before it.
struct ComingGates {
  ComingNumber decay, strength;
  __device__ void fetch(const Walk& walk, const DeltaRule& r, std::int64_t head, bool back) {
    decay.fetch(walk, [&](std::int64_t row) {
      if (back && walk.is_last(row)) return 0.0F;
      return r.decay[(back ? row + 1 : row) * r.value_heads + head];
    });
    strength.fetch(walk, [&](std::int64_t row) {
      return static_cast<float>(r.strength[row * r.value_heads + head]);
    });
  }
  template <class Stage>
  __device__ void put(Stage& s) const {
    decay.put(s.numbers[0], [](float x) { return expf(x); });
    strength.put(s.numbers[1], [](float x) { return x; });
  }
};

// A token's numbers of one head.
__device__ RowsOf<bf16> keys_of(const DeltaRule& r, const bf16* x, const Place& at) {
  return {x, r.key_heads * r.key_dim, at.key_head * r.key_dim, r.key_dim};
}
template <class T>
__device__ RowsOf<T> values_of(const DeltaRule& r, const T* x, const Place& at) {
  return {x, r.value_heads * r.value_dim, at.head * r.value_dim, r.value_dim};
}
// ... those of the block's rows of the state.
template <class T>
__device__ RowsOf<T> own_of(RowsOf<T> all, const Place& at) {
  return {all.x, all.stride, all.first + at.first, all.cols - at.first};
}

// Columns of the state. out: what is read of it; error: e. One of the two is null.
template <int Own>
__device__ void walk_state(bf16* out, float* error, const DeltaRule& r, Staged<Own, 2>& s) {
  constexpr int kCols = kLanes * Own;
  const Place at = place_of(r);
  const int own = state_row();
  const bool inside = at.first + own < r.value_dim;
  const float scale = scale_of(r);
  const RowsOf<bf16> keys = keys_of(r, r.k, at), queries = keys_of(r, r.q, at);
  const RowsOf<bf16> values = own_of(values_of(r, r.v, at), at);
  Walk walk(at.begin, r.seq_len, /*back=*/false);
  StateRow<Own> state;
  Coming<bf16, kCols> k, q;
  Coming<bf16, kStateRows> v;
  ComingGates gates;
  walk.each(
      [&] {
        k.fetch(walk, keys);
        if (out != nullptr) q.fetch(walk, queries);
        v.fetch(walk, values);
        gates.fetch(walk, r, at.head, /*back=*/false);
      },
      [&] {
        k.put(s.vectors[0]);
        if (out != nullptr) q.put(s.vectors[1]);
        v.put(s.rows[0]);
        gates.put(s);
      },
      [&](int i, std::int64_t row) {
        state.scale(s.numbers[0][i]);
        const float e = s.rows[0][i][own] - state.dot(s.vectors[0][i]);
        state.add(s.numbers[1][i] * e, s.vectors[0][i]);
        const std::int64_t to = row * values.stride + values.first + own;
        if (out != nullptr) {
          const float read = scale * state.dot(s.vectors[1][i]);
          if (speaks() && inside) out[to] = __float2bfloat16_rn(read);
        } else if (speaks() && inside) {
          error[to] = e;
        }
      });
}

// Columns of the state's gradient.
template <int Own>
__device__ void walk_gradient(float* derror, bf16* dv, const DeltaRule& r, const bf16* dout,
                              Staged<Own, 2>& s) {
  constexpr int kCols = kLanes * Own;
  const Place at = place_of(r);
  const int own = state_row();
  const bool inside = at.first + own < r.value_dim;
  const float scale = scale_of(r);
  const RowsOf<bf16> keys = keys_of(r, r.k, at), queries = keys_of(r, r.q, at);
  const RowsOf<bf16> outs = own_of(values_of(r, dout, at), at);
  Walk walk(at.begin, r.seq_len, /*back=*/true);
  StateRow<Own> gradient;
  Coming<bf16, kCols> k, q;
  Coming<bf16, kStateRows> d;
  ComingGates gates;
  walk.each(
      [&] {
        k.fetch(walk, keys);
        q.fetch(walk, queries);
        d.fetch(walk, outs);
        gates.fetch(walk, r, at.head, /*back=*/true);
      },
      [&] {
        k.put(s.vectors[0]);
        q.put(s.vectors[1]);
        d.put(s.rows[0]);
        gates.put(s);
      },
      [&](int i, std::int64_t row) {
        gradient.scale(s.numbers[0][i]);
        gradient.add(scale * s.rows[0][i][own], s.vectors[1][i]);
        const float de = gradient.dot(s.vectors[0][i]), strength = s.numbers[1][i];
        gradient.add(-strength * de, s.vectors[0][i]);
        if (!speaks() || !inside) return;
        const std::int64_t to = row * outs.stride + outs.first + own;
        derror[to] = de;
        dv[to] = __float2bfloat16_rn(strength * de);
      });
}

// What tokens add to the state and take off its gradient, but for their strength, and the gradient
// of what they gave.
template <int Own>
struct ComingValues {
  Coming<float, kLanes * Own> error, derror;
  Coming<bf16, kLanes * Own> dout;
  __device__ void fetch(const Walk& walk, const DeltaRule& r, const Between& b, const bf16* d,
                        const Place& at) {
    error.fetch(walk, values_of<float>(r, b.error, at));
    derror.fetch(walk, values_of<float>(r, b.derror, at));
    dout.fetch(walk, values_of(r, d, at));
  }
  __device__ void put(Staged<Own, 3>& s) const {
    error.put(s.vectors[0]);
    derror.put(s.vectors[1]);
    dout.put(s.vectors[2]);
  }
};

// Rows of the state, for the gradients of what reads them.
template <int Own>
__device__ void read_state(const Between& b, const DeltaRule& r, const bf16* dout,
                           Staged<Own, 3>& s) {
  const Place at = place_of(r);
  const int own = state_row();
  const bool inside = at.first + own < r.key_dim;
  const float scale = scale_of(r);
  const RowsOf<bf16> keys = own_of(keys_of(r, r.k, at), at);
  Walk walk(at.begin, r.seq_len, /*back=*/false);
  StateRow<Own> state;
  ComingValues<Own> values;
  Coming<bf16, kStateRows> k;
  ComingGates gates;
  walk.each(
      [&] {
        values.fetch(walk, r, b, dout, at);
        k.fetch(walk, keys);
        gates.fetch(walk, r, at.head, /*back=*/false);
      },
      [&] {
        values.put(s);
        k.put(s.rows[0]);
        gates.put(s);
      },
      [&](int i, std::int64_t row) {
        const float strength = s.numbers[1][i];
        state.scale(s.numbers[0][i]);
        const float dk = -strength * state.dot(s.vectors[1][i]);
        state.add(strength * s.rows[0][i][own], s.vectors[0][i]);
        const float dq = scale * state.dot(s.vectors[2][i]);
        if (!speaks() || !inside) return;
        const std::int64_t to = (row * r.value_heads + at.head) * r.key_dim + at.first + own;
        b.dk_read[to] = dk;
        b.dq[to] = dq;
      });
}

// Rows of the state's gradient, for that of the keys that add to the state.
template <int Own>
__device__ void read_gradient(const Between& b, const DeltaRule& r, const bf16* dout,
                              Staged<Own, 3>& s) {
  const Place at = place_of(r);
  const int own = state_row();
  const bool inside = at.first + own < r.key_dim;
  const float scale = scale_of(r);
  const RowsOf<bf16> keys = own_of(keys_of(r, r.k, at), at),
                     queries = own_of(keys_of(r, r.q, at), at);
  Walk walk(at.begin, r.seq_len, /*back=*/true);
  StateRow<Own> gradient;
  ComingValues<Own> values;
  Coming<bf16, kStateRows> k, q;
  ComingGates gates;
  walk.each(
      [&] {
        values.fetch(walk, r, b, dout, at);
        k.fetch(walk, keys);
        q.fetch(walk, queries);
        gates.fetch(walk, r, at.head, /*back=*/true);
      },
      [&] {
        values.put(s);
        k.put(s.rows[0]);
        q.put(s.rows[1]);
        gates.put(s);
      },
      [&](int i, std::int64_t row) {
        const float strength = s.numbers[1][i];
        gradient.scale(s.numbers[0][i]);
        gradient.add(scale * s.rows[1][i][own], s.vectors[2][i]);
        const float dk = strength * gradient.dot(s.vectors[0][i]);
        gradient.add(-strength * s.rows[0][i][own], s.vectors[1][i]);
        if (!speaks() || !inside) return;
        b.dk_added[(row * r.value_heads + at.head) * r.key_dim + at.first + own] = dk;
      });
}

template <int Own>
__global__ void __launch_bounds__(kWalkThreads) delta_rule_kernel(bf16* out, DeltaRule rule) {
  __shared__ Staged<Own, 2> staged;
  walk_state<Own>(out, nullptr, rule, staged);
}

// The two ways along a sequence at once.
template <int Own>
__global__ void __launch_bounds__(kWalkThreads)
    delta_columns_kernel(Between b, bf16* dv, DeltaRule rule, const bf16* dout) {
  __shared__ Staged<Own, 2> staged;
  if (blockIdx.z == 0) {
    walk_state<Own>(nullptr, b.error, rule, staged);
  } else {
    walk_gradient<Own>(b.derror, dv, rule, dout, staged);
  }
}

template <int Own>
__global__ void __launch_bounds__(kWalkThreads)
    delta_rows_kernel(Between b, DeltaRule rule, const bf16* dout) {
  __shared__ Staged<Own, 3> staged;
  if (blockIdx.z == 0) {
    read_state<Own>(b, rule, dout, staged);
  } else {
    read_gradient<Own>(b, rule, dout, staged);
  }
}

// Sums over the value heads of a key head, and the numbers a head; a warp for a token's key head.
// ddecay: what <D, S> grows by.
__global__ void __launch_bounds__(kThreads)
    delta_sums_kernel(DeltaRuleGradients g, Between b, DeltaRule r) {
  const std::int64_t i = thread_index() / kWarp, rows = r.batch * r.seq_len;
  const int lane = threadIdx.x % kWarp;
  if (i >= rows * r.key_heads) return;
  const std::int64_t row = i / r.key_heads, key_head = i % r.key_heads;
  const std::int64_t group = r.value_heads / r.key_heads, key = i * r.key_dim;
  constexpr int kMost = kWidestState / kWarp;
  float dq[kMost] = {}, dk[kMost] = {};
  for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
    const std::int64_t at = row * r.value_heads + head;
    float grown = 0, dstrength = 0;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const int c = j * kWarp + lane;
      if (c >= r.key_dim) continue;
      const std::int64_t own = at * r.key_dim + c;
      dq[j] += b.dq[own];
      dk[j] += b.dk_read[own] + b.dk_added[own];
      grown += b.dq[own] * static_cast<float>(r.q[key + c]);
    }
    const auto strength = static_cast<float>(r.strength[at]);
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const int c = j * kWarp + lane;
      if (c >= r.value_dim) continue;
      const std::int64_t own = at * r.value_dim + c;
      grown -= strength * b.derror[own] * static_cast<float>(r.v[own]);
      dstrength += b.derror[own] * b.error[own];
    }
    grown = warp_sum(grown);
    dstrength = warp_sum(dstrength);
    if (lane > 0) continue;
    g.ddecay[at] = grown;
    g.dstrength[at] = __float2bfloat16_rn(dstrength);
  }
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    const int c = j * kWarp + lane;
    if (c >= r.key_dim) continue;
    g.dq[key + c] = __float2bfloat16_rn(dq[j]);
    g.dk[key + c] = __float2bfloat16_rn(dk[j]);
  }
}

dim3 grid_of(const DeltaRule& rule, std::int64_t rows, unsigned ways) {
  return {static_cast<unsigned>(rule.batch * rule.value_heads), state_slices(rows), ways};
}

// A warp a sequence and head; its lanes have 32 tokens at a time, the last one's lane first.
__global__ void __launch_bounds__(kThreads)
    sum_from_behind_kernel(float* x, Rows rows, std::int64_t heads) {
  const std::int64_t i = thread_index() / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (i >= rows.batch * heads) return;
  float* const own = x + i / heads * rows.length * heads + i % heads;
  double behind = 0;
  for (std::int64_t last = rows.length - 1; last >= 0; last -= kWarp) {
    const std::int64_t t = last - lane;
    double sum = t >= 0 ? static_cast<double>(own[t * heads]) : 0;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const double other = __shfl_up_sync(0xffffffffU, sum, step);
      if (lane >= step) sum += other;
    }
    if (t >= 0) own[t * heads] = static_cast<float>(behind + sum);
    behind += __shfl_sync(0xffffffffU, sum, kWarp - 1);
  }
}

}  // namespace

void sum_from_behind(float* x, Rows rows, std::int64_t heads, cudaStream_t stream) {
  sum_from_behind_kernel<<<blocks_for(rows.batch * heads * kWarp), kThreads, 0, stream>>>(x, rows,
                                                                                          heads);
}

void delta_rule(bf16* out, const DeltaRule& rule, cudaStream_t stream) {
  with_state_width(rule.key_dim, [&](auto width) {
    delta_rule_kernel<decltype(width)::kOwn>
        <<<grid_of(rule, rule.value_dim, 1), kWalkThreads, 0, stream>>>(out, rule);
  });
}

void delta_rule_backward(const DeltaRuleGradients& gradients, const DeltaRule& rule,
                         const bf16* dout, float* scratch, cudaStream_t stream) {
  const std::int64_t all = rule.batch * rule.seq_len * rule.value_heads;
  const std::int64_t keys = all * rule.key_dim, values = all * rule.value_dim;
  const Between between{scratch, scratch + values, scratch + 2 * values,
                        scratch + 2 * values + keys, scratch + 2 * values + 2 * keys};
  with_state_width(rule.key_dim, [&](auto width) {
    delta_columns_kernel<decltype(width)::kOwn>
        <<<grid_of(rule, rule.value_dim, 2), kWalkThreads, 0, stream>>>(between, gradients.dv, rule,
                                                                        dout);
  });
  with_state_width(rule.value_dim, [&](auto width) {
    delta_rows_kernel<decltype(width)::kOwn>
        <<<grid_of(rule, rule.key_dim, 2), kWalkThreads, 0, stream>>>(between, rule, dout);
  });
  const std::int64_t tokens = rule.batch * rule.seq_len;
  delta_sums_kernel<<<blocks_for(tokens * rule.key_heads * kWarp), kThreads, 0, stream>>>(
      gradients, between, rule);
  sum_from_behind(gradients.ddecay, {rule.batch, rule.seq_len}, rule.value_heads, stream);
}

}  // namespace qplan::kernels
