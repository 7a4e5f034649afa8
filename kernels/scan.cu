// Mamba-2's scan token by token. With step dt, decay a = exp(-exp(a_log) dt):
//
//   S = a S + dt x B^T;   y = S C + skip x
//
// Neither rows nor columns of a state need others, nor do those of its gradient G, which goes
// through the tokens from behind:
//
//   G = G + dy C^T;   dx = dt G B + skip dy;   dB = dt G^T x;   dC = S^T dy;   G = a G
//
// So no state is stored. The gradient of a decay's logarithm is the product <G, S> between tokens:
// it grows, from the end on, by C . dC - B . dB a token, of a head alone.

#include "kernels/recurrence.cuh"

namespace qplan::kernels {
namespace {

// Columns of a row.
struct Widths {
  std::int64_t inner, shared, channels, projected;
};
__host__ __device__ Widths widths_of(const Scan& s) {
  const std::int64_t inner = s.heads * s.head_dim, shared = s.groups * s.state_size;
  return {inner, shared, inner + 2 * shared, 2 * inner + 2 * shared + s.heads};
}

// Of a token and head: what its step is made of.
struct Step {
  float raw, size, rate;
  bool held;  // at the smallest
};
__device__ float raw_step(const Scan& s, std::int64_t row, std::int64_t head) {
  const Widths w = widths_of(s);
  return static_cast<float>(s.projected[row * w.projected + w.inner + w.channels + head]);
}
__device__ float rate_of(const Scan& s, std::int64_t head) {
  return -expf(static_cast<float>(s.a_log[head]));
}
__device__ Step step_of(const Scan& s, float raw, std::int64_t head) {
  Step step{};
  step.raw = raw + static_cast<float>(s.dt_bias[head]);
  const float size = softplus(step.raw);
  step.held = size < s.step_min;
  step.size = step.held ? s.step_min : size;
  step.rate = rate_of(s, head);
  return step;
}
__device__ Step step_at(const Scan& s, std::int64_t row, std::int64_t head) {
  return step_of(s, raw_step(s, row, head), head);
}

// In fp32: gradients of the scan's output (rows, heads * head_dim), of B, but for the step, and of
// C a head each (rows, heads * state_size), and a number a token and head: what <G, S> grows by,
// the gradients of the step as it scales the input, and of the skip.
struct Between {
  float *dy, *db, *dc, *grown, *of_step, *of_skip;
};

struct Place {
  std::int64_t begin, head, group, first;  // first: of the block's rows of the state
};
__device__ Place place_of(const Scan& s) {
  const std::int64_t sequence = blockIdx.x / s.heads, head = blockIdx.x % s.heads;
  return {sequence * s.seq_len, head, head / (s.heads / s.groups),
          std::int64_t{blockIdx.y} * kStateRows};
}

// Decays and steps of the tokens that come; on the way back a token's state has been decayed by the
// one that is walked before it.
struct ComingSteps {
  ComingNumber decay, step;
  __device__ void fetch(const Walk& walk, const Scan& s, std::int64_t head, bool back) {
    decay.fetch(walk, [&](std::int64_t row) {
      return raw_step(s, back && !walk.is_last(row) ? row + 1 : row, head);
    });
    step.fetch(walk, [&](std::int64_t row) { return raw_step(s, row, head); });
  }
  template <class Stage>
  __device__ void put(Stage& stage, const Scan& s, std::int64_t head) const {
    decay.put(stage.numbers[0], [&](float raw) {
      const Step own = step_of(s, raw, head);
      return expf(own.rate * own.size);
    });
    step.put(stage.numbers[1], [&](float raw) { return step_of(s, raw, head).size; });
  }
};

// A token's B, or C, of one group, and its input of one head.
__device__ RowsOf<bf16> shared_of(const Scan& s, const Place& at, bool c) {
  const Widths w = widths_of(s);
  return {s.xbc, w.channels, w.inner + (c ? w.shared : 0) + at.group * s.state_size, s.state_size};
}
__device__ RowsOf<bf16> inputs_of(const Scan& s, const Place& at) {
  return {s.xbc, widths_of(s).channels, at.head * s.head_dim, s.head_dim};
}
// ... those of the block's rows of the state.
template <class T>
__device__ RowsOf<T> own_of(RowsOf<T> all, const Place& at) {
  return {all.x, all.stride, all.first + at.first, all.cols - at.first};
}

template <int Own>
__global__ void __launch_bounds__(kWalkThreads) scan_kernel(bf16* out, bf16* gated, Scan s) {
  __shared__ Staged<Own, 2> stage;
  const Place at = place_of(s);
  const Widths w = widths_of(s);
  const int own = state_row();
  const RowsOf<bf16> bs = shared_of(s, at, false), cs = shared_of(s, at, true);
  const RowsOf<bf16> inputs = own_of(inputs_of(s, at), at);
  const RowsOf<bf16> gates{s.projected, w.projected, inputs.first, inputs.cols};
  const auto skip = static_cast<float>(s.skip[at.head]);
  Walk walk(at.begin, s.seq_len, /*back=*/false);
  StateRow<Own> state;
  Coming<bf16, kLanes * Own> b, c;
  Coming<bf16, kStateRows> xs, zs;
  ComingSteps steps;
  walk.each(
      [&] {
        b.fetch(walk, bs);
        c.fetch(walk, cs);
        xs.fetch(walk, inputs);
        zs.fetch(walk, gates);
        steps.fetch(walk, s, at.head, /*back=*/false);
      },
      [&] {
        b.put(stage.vectors[0]);
        c.put(stage.vectors[1]);
        xs.put(stage.rows[0]);
        zs.put(stage.rows[1]);
        steps.put(stage, s, at.head);
      },
      [&](int i, std::int64_t row) {
        const float x = stage.rows[0][i][own], z = stage.rows[1][i][own];
        state.scale(stage.numbers[0][i]);
        state.add(stage.numbers[1][i] * x, stage.vectors[0][i]);
        const float y = state.dot(stage.vectors[1][i]) + skip * x;
        if (!speaks() || own >= inputs.cols) return;
        const std::int64_t to = row * w.inner + inputs.first + own;
        out[to] = __float2bfloat16_rn(y);
        gated[to] = __float2bfloat16_rn(y * z * sigmoid(z));
      });
}

// dy of the gated output's gradient, and the gate's gradient.
__global__ void __launch_bounds__(kThreads)
    scan_gate_backward_kernel(float* dy, bf16* dprojected, const bf16* out, const bf16* dgated,
                              Scan s) {
  const Widths w = widths_of(s);
  const std::int64_t i = thread_index() * kVector, row = i / w.inner, c = i % w.inner;
  if (row >= s.batch * s.seq_len) return;
  Vector z = load(s.projected + row * w.projected + c), d = load(dgated + i);
  const Vector y = load(out + i);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float share = sigmoid(z.x[j]);
    const float by_gate = d.x[j] * y.x[j] * share * (1 + z.x[j] * (1 - share));
    d.x[j] *= z.x[j] * share;
    z.x[j] = by_gate;
  }
  store(dprojected + row * w.projected + c, z);
  auto* to = reinterpret_cast<float4*>(dy + i);
  to[0] = {d.x[0], d.x[1], d.x[2], d.x[3]};
  to[1] = {d.x[4], d.x[5], d.x[6], d.x[7]};
}

// By columns of the state, for C's gradient, and of its gradient, for B's: the two ways along a
// sequence at once.
template <int Own>
__global__ void __launch_bounds__(kWalkThreads) scan_columns_kernel(Between b, Scan s) {
  __shared__ Staged<Own, 2> stage;
  const bool back = blockIdx.z > 0;
  const Place at = place_of(s);
  const int own = state_row();
  const RowsOf<bf16> inputs = inputs_of(s, at), shared = own_of(shared_of(s, at, back), at);
  const RowsOf<float> outs{b.dy, widths_of(s).inner, at.head * s.head_dim, s.head_dim};
  Walk walk(at.begin, s.seq_len, back);
  StateRow<Own> state;
  Coming<bf16, kLanes * Own> x;
  Coming<float, kLanes * Own> dy;
  Coming<bf16, kStateRows> c;
  ComingSteps steps;
  walk.each(
      [&] {
        x.fetch(walk, inputs);
        dy.fetch(walk, outs);
        c.fetch(walk, shared);
        steps.fetch(walk, s, at.head, back);
      },
      [&] {
        x.put(stage.vectors[0]);
        dy.put(stage.vectors[1]);
        c.put(stage.rows[0]);
        steps.put(stage, s, at.head);
      },
      [&](int i, std::int64_t row) {
        const float *const in = stage.vectors[0][i], *const out = stage.vectors[1][i];
        const float size = back ? 1 : stage.numbers[1][i];
        state.scale(stage.numbers[0][i]);
        state.add(size * stage.rows[0][i][own], back ? out : in);
        const float read = state.dot(back ? in : out);
        if (!speaks() || own >= shared.cols) return;
        (back ? b.db : b.dc)[(row * s.heads + at.head) * s.state_size + at.first + own] = read;
      });
}

// By rows of the state's gradient, for the input's.
template <int Own>
__global__ void __launch_bounds__(kWalkThreads)
    scan_rows_kernel(bf16* dxbc, const float* dy, Scan s) {
  __shared__ Staged<Own, 2> stage;
  const Place at = place_of(s);
  const Widths w = widths_of(s);
  const int own = state_row();
  const RowsOf<bf16> bs = shared_of(s, at, false), cs = shared_of(s, at, true);
  const RowsOf<float> outs =
      own_of(RowsOf<float>{dy, w.inner, at.head * s.head_dim, s.head_dim}, at);
  const auto skip = static_cast<float>(s.skip[at.head]);
  Walk walk(at.begin, s.seq_len, /*back=*/true);
  StateRow<Own> gradient;
  Coming<bf16, kLanes * Own> b, c;
  Coming<float, kStateRows> ds;
  ComingSteps steps;
  walk.each(
      [&] {
        b.fetch(walk, bs);
        c.fetch(walk, cs);
        ds.fetch(walk, outs);
        steps.fetch(walk, s, at.head, /*back=*/true);
      },
      [&] {
        b.put(stage.vectors[0]);
        c.put(stage.vectors[1]);
        ds.put(stage.rows[0]);
        steps.put(stage, s, at.head);
      },
      [&](int i, std::int64_t row) {
        const float d = stage.rows[0][i][own];
        gradient.scale(stage.numbers[0][i]);
        gradient.add(d, stage.vectors[1][i]);
        const float dx = stage.numbers[1][i] * gradient.dot(stage.vectors[0][i]) + skip * d;
        if (!speaks() || own >= outs.cols) return;
        dxbc[row * w.channels + outs.first + own] = __float2bfloat16_rn(dx);
      });
}

// Sums over the heads of a group, and the numbers a head; a warp for a token's group.
__global__ void __launch_bounds__(kThreads) scan_sums_kernel(bf16* dxbc, Between b, Scan s) {
  const std::int64_t i = thread_index() / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (i >= s.batch * s.seq_len * s.groups) return;
  const Widths w = widths_of(s);
  const std::int64_t row = i / s.groups, group = i % s.groups, heads = s.heads / s.groups;
  const std::int64_t of_b = row * w.channels + w.inner + group * s.state_size;
  const std::int64_t of_c = of_b + w.shared;
  constexpr int kMost = kWidestState / kWarp;
  float db[kMost] = {}, dc[kMost] = {};
  for (std::int64_t head = group * heads; head < (group + 1) * heads; ++head) {
    const std::int64_t at = row * s.heads + head;
    const float size = step_at(s, row, head).size;
    float by_b = 0, by_c = 0, by_skip = 0;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const int c = j * kWarp + lane;
      if (c < s.state_size) {
        const float own_b = b.db[at * s.state_size + c], own_c = b.dc[at * s.state_size + c];
        db[j] += size * own_b;
        dc[j] += own_c;
        by_b += static_cast<float>(s.xbc[of_b + c]) * own_b;
        by_c += static_cast<float>(s.xbc[of_c + c]) * own_c;
      }
      if (c < s.head_dim) {
        const std::int64_t x = head * s.head_dim + c;
        by_skip += static_cast<float>(s.xbc[row * w.channels + x]) * b.dy[row * w.inner + x];
      }
    }
    by_b = warp_sum(by_b);
    by_c = warp_sum(by_c);
    by_skip = warp_sum(by_skip);
    if (lane > 0) continue;
    b.grown[at] = by_c - size * by_b;
    b.of_step[at] = by_b;
    b.of_skip[at] = by_skip;
  }
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    const int c = j * kWarp + lane;
    if (c >= s.state_size) continue;
    dxbc[of_b + c] = __float2bfloat16_rn(db[j]);
    dxbc[of_c + c] = __float2bfloat16_rn(dc[j]);
  }
}

// A block a head: heads are few and tokens many. b.grown: <G, S> behind each token.
__global__ void __launch_bounds__(kThreads) scan_steps_kernel(ScanGradients g, Between b, Scan s) {
  const Widths w = widths_of(s);
  const std::int64_t head = blockIdx.x;
  float of_bias = 0, of_log = 0, of_skip = 0;
  for (std::int64_t row = threadIdx.x; row < s.batch * s.seq_len; row += kThreads) {
    const std::int64_t at = row * s.heads + head;
    const Step step = step_at(s, row, head);
    const float of_decay = b.grown[at] * step.rate;
    const float of_raw = step.held ? 0 : (b.of_step[at] + of_decay) * sigmoid(step.raw);
    g.dprojected[row * w.projected + w.inner + w.channels + head] = __float2bfloat16_rn(of_raw);
    of_bias += of_raw;
    of_log += of_decay * step.size;
    of_skip += b.of_skip[at];
  }
  of_bias = block_sum<kThreads>(of_bias);
  of_log = block_sum<kThreads>(of_log);
  of_skip = block_sum<kThreads>(of_skip);
  if (threadIdx.x > 0) return;
  if (g.d_dt_bias != nullptr) g.d_dt_bias[head] += of_bias;
  if (g.d_a_log != nullptr) g.d_a_log[head] += of_log;
  if (g.dskip != nullptr) g.dskip[head] += of_skip;
}

dim3 grid_of(const Scan& s, std::int64_t rows, unsigned ways) {
  return {static_cast<unsigned>(s.batch * s.heads), state_slices(rows), ways};
}

}  // namespace

void scan(bf16* out, bf16* gated, const Scan& s, cudaStream_t stream) {
  with_state_width(s.state_size, [&](auto width) {
    scan_kernel<decltype(width)::kOwn>
        <<<grid_of(s, s.head_dim, 1), kWalkThreads, 0, stream>>>(out, gated, s);
  });
}

void scan_backward(const ScanGradients& gradients, const Scan& s, const bf16* out,
                   const bf16* dgated, float* scratch, cudaStream_t stream) {
  const std::int64_t tokens = s.batch * s.seq_len, all = tokens * s.heads;
  const std::int64_t inner = all * s.head_dim, states = all * s.state_size;
  float* const numbers = scratch + inner + 2 * states;
  const Between between{scratch, scratch + inner, scratch + inner + states,
                        numbers, numbers + all,   numbers + 2 * all};
  scan_gate_backward_kernel<<<blocks_for(inner / kVector), kThreads, 0, stream>>>(
      between.dy, gradients.dprojected, out, dgated, s);
  with_state_width(s.head_dim, [&](auto width) {
    scan_columns_kernel<decltype(width)::kOwn>
        <<<grid_of(s, s.state_size, 2), kWalkThreads, 0, stream>>>(between, s);
  });
  with_state_width(s.state_size, [&](auto width) {
    scan_rows_kernel<decltype(width)::kOwn>
        <<<grid_of(s, s.head_dim, 1), kWalkThreads, 0, stream>>>(gradients.dxbc, between.dy, s);
  });
  scan_sums_kernel<<<blocks_for(tokens * s.groups * kWarp), kThreads, 0, stream>>>(gradients.dxbc,
                                                                                   between, s);
  sum_from_behind(between.grown, {s.batch, s.seq_len}, s.heads, stream);
  scan_steps_kernel<<<static_cast<unsigned>(s.heads), kThreads, 0, stream>>>(gradients, between, s);
}

}  // namespace qplan::kernels
