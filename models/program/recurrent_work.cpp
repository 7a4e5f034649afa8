// What kernels of the gated delta rule and of Mamba-2's scan multiply and move, chunk by chunk.

#include <cmath>

#include "models/program/work.h"
#include "models/units.h"

namespace qplan {
namespace {

// Tokens of sequences that are made whole chunks.
template <class W>
double whole_chunks(const W& w) {
  const auto chunk = as_double(w.chunk);
  return as_double(w.batch) * std::ceil(as_double(w.seq_len) / chunk) * chunk;
}

// Ours (kernels/scan.cu), each array as each kernel reads or writes it; heads of a group have
// products of B and C of their own. Gates, states, outputs; backward gates, the output's gradient,
// states and their gradients, and of each chunk all others.
ScanParts own_parts(const StateSpaceScan& w) {
  const double chunk = as_double(w.chunk), heads = as_double(w.heads), n = as_double(w.state_size);
  const double rows = whole_chunks(w), inner = heads * as_double(w.head_dim);
  const double shared = as_double(w.groups) * n, state = inner * n / chunk;
  const double pairs = 2 * chunk * heads, whole = 2 * inner * n;
  const double of_shared = pairs * n, of_inner = pairs * as_double(w.head_dim);
  constexpr double kElement = 2, kGates = 5 * 4;
  const double gates = kGates * heads;
  if (w.pass == Pass::forward) {
    const double walk = kElement * (inner + shared + state) + gates;
    return {Flops(rows * (of_shared + of_inner + 2 * whole)),
            Bytes(rows * (walk + kElement * (4 * inner + 2 * shared + state) + 2 * gates)),
            Bytes(rows * walk)};
  }
  const double walk = 2 * (kElement * (inner + shared + state) + gates);
  const double gradients = kElement * (3 * inner + 4 * shared + 2 * state) + gates;
  return {Flops(rows * (3 * of_shared + 2 * of_inner + 5 * whole)),
          Bytes(rows * (gates + kElement * 5 * inner + walk + gradients)), Bytes(rows * walk)};
}

// Ours (kernels/delta_rule.cu): the products are fla's, but for those of the inverse.
DeltaRuleParts own_parts(const GatedDeltaRule& w) {
  const double c = as_double(w.chunk), k = as_double(w.key_dim), v = as_double(w.value_dim);
  const double shared = k * as_double(w.key_heads) / as_double(w.value_heads);
  const double rows = whole_chunks(w) * as_double(w.value_heads), state = k * v / c;
  const double pairs = 2 * c, whole = 2 * k * v;
  constexpr double kElement = 2;
  const double prepared = shared + v + k + v, walk = shared + k + 2 * v + state;
  if (w.pass == Pass::forward) {
    return {Flops(rows * (pairs * (3 * k + 2 * v) + whole + c * c / 3)), Flops(rows * 2 * whole),
            Bytes(rows * kElement * (prepared + 2 * shared + 2 * v + state)),
            Bytes(rows * kElement * walk)};
  }
  const double gradients = 4 * shared + 4 * v + c + 2 * state;
  return {Flops(rows * (pairs * (9 * k + 5 * v) + 3 * whole + c * c / 3)), Flops(rows * 5 * whole),
          Bytes(rows * kElement * (prepared + c + 2 * shared + 2 * v + gradients)),
          Bytes(rows * kElement * (walk + 2 * shared + k + 3 * v + state))};
}

template <class W>
OwnScratch own_rows(const W& w, std::int64_t cols) {
  return {w.batch * ceil_div(w.seq_len, kOwnChunk) * kOwnChunk, cols};
}

// Of a token and head: decays and strengths, five numbers in fp32.
constexpr std::int64_t kGateCols = 10;

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
  if (w.own) return own_parts(w);
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
  if (w.own) return own_parts(w);
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

// W, E and the states that chunks begin with; backward also D, T and the states' gradients.
OwnScratch own_scratch(const GatedDeltaRule& w) {
  const std::int64_t state = w.key_dim * w.value_dim / kOwnChunk;
  const std::int64_t forward = w.key_dim + w.value_dim + state + kGateCols;
  const std::int64_t more = w.value_dim + kOwnChunk + state;
  return own_rows(w, w.value_heads * (forward + (w.pass == Pass::forward ? 0 : more)));
}
// The states that chunks begin with; backward also their gradients, the output's, those of B and C
// of part of a group's heads in fp32, and three numbers a chunk.
OwnScratch own_scratch(const StateSpaceScan& w) {
  const std::int64_t state = w.head_dim * w.state_size / kOwnChunk;
  const std::int64_t more = state + w.head_dim + 4 * w.state_size + 1;
  return own_rows(w, w.heads * (state + kGateCols + (w.pass == Pass::forward ? 0 : more)));
}

// Sums of the decay, a clear of the inverse, the inverse, W and U, states, output; backward W and
// U, states, dV, dS, input gradients, through the inverse, and sums of what two of them give
// (fla-core 0.6.0 under a profiler). Ours: gates, T and W, states, output; backward the first
// three, what outputs give, gradients of states, all others.
int kernel_count(const GatedDeltaRule& w) {
  if (w.own) return w.pass == Pass::forward ? 4 : 6;
  return w.pass == Pass::forward ? 6 : 11;
}

// The kernels of parts_of(), and in backward sums over what blocks made of D and the decays. Ours:
// gates, states, output; backward gates, the output's gradient, states, all others, sums.
int kernel_count(const StateSpaceScan& w) {
  if (w.own) return w.pass == Pass::forward ? 3 : 5;
  return w.pass == Pass::forward ? 5 : 16 + (w.gated ? 1 : 0);
}

}  // namespace qplan
