// What kernels of the gated delta rule and of Mamba-2's scan multiply and move, chunk by chunk, or,
// in chunks of one token, as ours do.

#include <cmath>

#include "models/program/op.h"
#include "models/units.h"

namespace qplan {
namespace {

// A number of a state decays (1 FLOP), is added to and read (2 each): kernels/delta_rule.cu,
// kernels/scan.cu. Bytes as each kernel reads and writes its arrays once; what blocks of a head
// read once more comes from the L2 cache.
DeltaRuleParts by_token(const GatedDeltaRule& w) {
  const double k = as_double(w.key_dim), v = as_double(w.value_dim);
  const double shared = k * as_double(w.key_heads) / as_double(w.value_heads);
  const double heads = as_double(w.batch) * as_double(w.value_heads) * as_double(w.seq_len);
  // Read twice. Backward: that once more without the output, then the gradient, read once and added
  // to twice, by columns; and the rows of both.
  if (w.pass == Pass::forward) {
    return {{}, Flops(heads * 7 * k * v), {}, Bytes(heads * (4 * shared + 4 * v + 6))};
  }
  return {
      {}, Flops(heads * (5 + 3 * 7) * k * v), {}, Bytes(heads * (18 * shared + 24 * k + 44 * v))};
}

ScanParts by_token(const StateSpaceScan& w) {
  const double tokens = as_double(w.batch) * as_double(w.seq_len), heads = as_double(w.heads);
  const double inner = heads * as_double(w.head_dim), n = as_double(w.state_size);
  const double shared = as_double(w.groups) * n;
  const double state = inner * n;
  // Backward: the state and its gradient by columns, the latter by rows.
  if (w.pass == Pass::forward) {
    return {Flops(tokens * 5 * state), Bytes(tokens * (8 * inner + 4 * shared + 2 * heads)), {}};
  }
  return {Flops(tokens * 15 * state),
          Bytes(tokens * (36 * inner + 16 * shared + 16 * heads * n + 40 * heads)),
          {}};
}

}  // namespace

// Of a chunk of C tokens and a head with keys of K and values of V numbers, as fla's kernels
// multiply and move it (fla/ops/gated_delta_rule and fla/ops/common, bc3b101d), 2 bytes an element.
// Forward:
//   K K^T and the inverse of it with the identity (C^3 / 3)       reads K; writes A       chunk_fwd
//   W = A (b K), U = A (b V)                                      K, V, A; W, U           wy_fast
//   between chunks: V' = U - W S, then S += K^T V'                K, W, U; S, V'    chunk_delta_h
//   O = Q S + (Q K^T) V'                                          Q, K, V', S; O          chunk_o
// Backward: W, U; between chunks V' and S once more; dV = (Q K^T)^T dO (Q, K, dO; dV); between
// chunks dS from K dS, Q^T dO and W^T dV (Q, K, W, dO, dV; dS, dV); dO V'^T, dO S^T, V' dS^T, dV
// S^T and both products of the first with K and Q (Q, K, V', dO, dV, S, dS; dQ, dK, dW); through
// the inverse (two C^3), W, U and K K^T (K, V, dW, dU, A; dK, dV); both dK added up. Heads that
// share queries and keys read them from the L2 cache but once.
DeltaRuleParts parts_of(const GatedDeltaRule& w) {
  if (w.chunk == 1) return by_token(w);
  const double c = as_double(w.chunk), k = as_double(w.key_dim), v = as_double(w.value_dim);
  const double state = k * v / c;  // elements a token
  const double shared = k * as_double(w.key_heads) / as_double(w.value_heads);
  const double rows =
      as_double(w.batch) * as_double(w.value_heads) * std::ceil(as_double(w.seq_len) / c) * c;
  constexpr double kElement = 2;
  // A token's share of a product of two sides with the chunk, and with the state.
  const double pairs = 2 * c, whole = 2 * k * v;
  const double read_keys = shared, wy = read_keys + v + c + k + v;
  if (w.pass == Pass::forward) {
    const double products = pairs * (3 * k + 2 * v) + whole + c * c / 3;
    const double moved = (read_keys + c) + wy + (2 * shared + v + state + v);
    const double through = read_keys + k + v + state + v;
    return {Flops(rows * products), Flops(rows * 2 * whole), Bytes(rows * moved * kElement),
            Bytes(rows * through * kElement)};
  }
  const double products = pairs * (9 * k + 5 * v) + 3 * whole + 4 * c * c;
  const double gradients = 2 * shared + 3 * v + 2 * state + 3 * k;
  const double inverse = read_keys + v + k + v + c + k + v;
  const double moved = wy + (2 * shared + 2 * v) + gradients + inverse + 3 * k;
  const double through = (read_keys + k + v + state + v) + (2 * shared + k + 2 * v + state + v);
  return {Flops(rows * products), Flops(rows * 5 * whole), Bytes(rows * moved * kElement),
          Bytes(rows * through * kElement)};
}

// Of a token, as mamba_ssm's kernels multiply and move it (ops/triton/ssd_*.py, 2.3.0): chunks of
// L tokens, heads of P numbers, states of P x N, G groups of heads. Operands of 2 bytes; step sizes
// dt and the sums of dt A, C B^T and states in fp32, states as products read them in 2 bytes.
// Forward:
//   sums of dt A within chunks                                    dt; dt, sums         chunk_cumsum
//   the state that a chunk alone makes, B^T (x decay dt)          B, x; states          chunk_state
//   between chunks: states decay and are added up                 states; states      state_passing
//   C B^T, a group each, whole squares                            B, C; C B^T             bmm_chunk
//   y = C state + (C B^T decay dt) x, lower triangle, + D x       all of these; y        chunk_scan
//   gated: times SiLU(z), y kept as it was                        z; y
// Backward: all of that but the last again; gated: from z, y and dy to dz, dy and D's (bwd_dz);
// gradients of states, C^T dy (dy, C; dS) and between chunks; dx = (C B^T)^T dy + B dS; dB = x dS;
// dC = dy states; of C B^T from x and dy a head, added up for its group; from it to B and C; of the
// decays from x, dy and C B^T once more.
ScanParts parts_of(const StateSpaceScan& w) {
  if (w.chunk == 1) return by_token(w);
  const double chunk = as_double(w.chunk), heads = as_double(w.heads);
  const double rows = as_double(w.batch) * std::ceil(as_double(w.seq_len) / chunk) * chunk;
  const double inner = heads * as_double(w.head_dim);
  const double shared = as_double(w.groups) * as_double(w.state_size);  // B, or C
  const double pairs = as_double(w.groups) * chunk;                     // of C B^T
  const double state = inner * as_double(w.state_size) / chunk;
  const double square = 2 * chunk * shared, triangle = chunk * inner;
  const double whole = 2 * inner * as_double(w.state_size);
  constexpr double kElement = 2, kWide = 4;
  const double sums = heads * (kElement + 2 * kWide);  // made
  const double steps = 2 * kWide * heads;              // read
  const double states = kElement * (shared + inner) + steps + kWide * state;
  const double pass = (kWide + kElement) * state;
  const double products = 2 * kElement * shared + kWide * pairs;
  if (w.pass == Pass::forward) {
    const double scan = kWide * pairs + steps + kElement * (shared + state + 2 * inner) +
                        (w.gated ? 2 * kElement * inner : 0);
    return {Flops(rows * (square + 2 * whole + triangle)),
            Bytes(rows * (sums + states + products + scan)), Bytes(rows * pass)};
  }
  const double gate = w.gated ? kElement * 6 * inner : 0;
  const double of_states = kElement * (inner + shared) + steps / 2 + kWide * state;
  const double back = kWide * 2 * state + kElement * 2 * state;  // both arrays, again in 2 bytes
  const double dx = kElement * (3 * inner + shared + state) + kWide * pairs + steps;
  const double db = kElement * (inner + shared + state) + steps + kWide * shared;
  const double dc = kElement * (inner + shared + state) + steps + kWide * shared;
  const double dcb = kElement * 2 * inner + steps + kWide * pairs;
  const double through = 2 * (kWide * pairs + kElement * 2 * shared + kWide * shared);
  const double decays = kElement * 2 * inner + kWide * pairs + steps + kWide * heads;
  return {Flops(rows * (3 * square + 5 * whole + 3 * triangle)),
          Bytes(rows * (sums + states + products + gate + of_states + dx + db + dc + dcb + through +
                        decays + sums)),
          Bytes(rows * (pass + back))};
}

// Sums of the decay, a clear of the inverse, the inverse, W and U, states, output; backward W and
// U, states, dV, dS, input gradients, through the inverse, and sums of what two of them give
// (fla-core 0.6.0 under a profiler). Ours: one, and by columns, by rows, sums, sums from behind.
int kernel_count(const GatedDeltaRule& w) {
  if (w.chunk == 1) return w.pass == Pass::forward ? 1 : 4;
  return w.pass == Pass::forward ? 6 : 11;
}

// The kernels of parts_of(), and in backward sums over what blocks made of D and the decays.
// Ours: one, and the gate's, by columns, by rows, sums, sums from behind, steps.
int kernel_count(const StateSpaceScan& w) {
  if (w.chunk == 1) return w.pass == Pass::forward ? 1 : 6;
  return w.pass == Pass::forward ? 5 : 16 + (w.gated ? 1 : 0);
}

}  // namespace qplan
