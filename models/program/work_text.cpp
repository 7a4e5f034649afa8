// What work is called, how it reads, and the hash by which two are told apart.

#include <fmt/format.h>

#include <bit>
#include <type_traits>

#include "models/overloaded.h"
#include "models/program/work.h"

namespace qplan {
namespace {

// FNV-style mixing of whole words; the finaliser of SplitMix64 (Steele et al., 2014).
class Hasher {
 public:
  template <class T>
  void add(T value) {
    std::uint64_t word = 0;
    if constexpr (std::is_same_v<T, Bytes>) {
      word = std::bit_cast<std::uint64_t>(value.value());
    } else {
      word = static_cast<std::uint64_t>(value);
    }
    state_ = mix(state_ ^ word);
  }
  [[nodiscard]] std::uint64_t result() const { return state_; }

 private:
  static std::uint64_t mix(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  }
  std::uint64_t state_ = 0;
};

// Every field of each kind, in order: what makes two works the same work.
constexpr Overloaded each_field{
    [](const Gemm& w, auto&& f) { f(w.m, w.n, w.k, w.batch, w.dtype, w.accumulate_fp32, w.adds); },
    [](const GroupedGemm& w, auto&& f) {
      f(w.groups, w.rows, w.n, w.k, w.dtype, w.weight_gradient, w.accumulate_fp32, w.adds);
    },
    [](const Attention& w, auto&& f) {
      f(w.batch, w.heads, w.kv_heads, w.q_len, w.kv_len, w.head_dim, w.v_head_dim, w.window,
        w.causal, w.pass, w.kernel, w.deterministic, w.dropout, w.sinks, w.latent);
    },
    [](const Rowwise& w, auto&& f) {
      f(w.kind, w.rows, w.cols, w.dtype, w.fused, w.groups, w.chain);
    },
    [](const Collective& w, auto&& f) {
      f(w.kind, w.axis, w.bytes, w.expert_parallel_library, w.rank_share, w.neighbours, w.groups,
        w.groups_of_token);
    },
    [](const Muon& w, auto&& f) {
      f(w.rows, w.cols, w.matrices, w.params, w.grad, w.main_params, w.moments, w.working);
    },
    [](const SendRecv& w, auto&& f) { f(w.axis, w.bytes); },
    [](const Update& w, auto&& f) {
      f(w.params, w.grad, w.main_params, w.moments, w.working, w.fused, w.optimizer, w.factors,
        w.tensors);
    },
    [](const HostCopy& w, auto&& f) { f(w.bytes, w.to_host); },
    [](const HostAdam& w, auto&& f) {
      f(w.params, w.nvme, w.grad, w.main_params, w.moments, w.working, w.fused, w.casts_apart,
        w.clipping);
    },
    [](const Join&, auto&& f) { f(0); },
    [](const GatedDeltaRule& w, auto&& f) {
      f(w.batch, w.seq_len, w.key_heads, w.value_heads, w.key_dim, w.value_dim, w.chunk, w.pass,
        w.own);
    },
    [](const StateSpaceScan& w, auto&& f) {
      f(w.batch, w.seq_len, w.heads, w.groups, w.head_dim, w.state_size, w.chunk, w.gated, w.pass,
        w.own);
    },
};

std::string bytes_text(Bytes bytes) {
  if (bytes >= mib(1)) return fmt::format("{:.1f} MiB", bytes.value() / kMiB);
  return fmt::format("{:.0f} B", bytes.value());
}

std::string attention_text(const Attention& a) {
  std::string text = fmt::format("attention b{} h{}", a.batch, a.heads);
  if (a.kv_heads != a.heads) text += fmt::format("/{}", a.kv_heads);
  text += fmt::format(" q{} kv{} d{}", a.q_len, a.kv_len, a.head_dim);
  if (a.v_head_dim > 0 && a.v_head_dim != a.head_dim) text += fmt::format("/{}", a.v_head_dim);
  if (a.window > 0) text += fmt::format(" window {}", a.window);
  if (a.causal) text += " causal";
  if (a.pass == Pass::backward) text += " backward";
  if (a.kernel == AttentionKernel::flash2) text += " flash2";
  if (a.kernel == AttentionKernel::flash1) text += " flash1";
  if (a.kernel == AttentionKernel::unfused) text += " unfused";
  if (a.kernel == AttentionKernel::flex) text += " flex";
  if (a.kernel == AttentionKernel::fused_fp8) text += " fp8";
  return text;
}

std::string delta_rule_text(const GatedDeltaRule& w) {
  return fmt::format("gated_delta_rule b{} s{} h{}/{} d{}/{}{}{}", w.batch, w.seq_len,
                     w.value_heads, w.key_heads, w.key_dim, w.value_dim, w.own ? " own" : "",
                     w.pass == Pass::backward ? " backward" : "");
}

std::string scan_text(const StateSpaceScan& w) {
  return fmt::format("state_space_scan b{} s{} h{}/{} d{}/{} chunk {}{}{}{}", w.batch, w.seq_len,
                     w.heads, w.groups, w.head_dim, w.state_size, w.chunk, w.own ? " own" : "",
                     w.gated ? " gated" : "", w.pass == Pass::backward ? " backward" : "");
}

std::string_view grouped_name(const GroupedGemm& g) {
  return g.weight_gradient ? "grouped_gemm wgrad" : "grouped_gemm";
}

}  // namespace

std::string_view kind_name(const Work& work) {
  return std::visit(
      Overloaded{[](const Gemm&) -> std::string_view { return "gemm"; },
                 [](const GroupedGemm&) -> std::string_view { return "grouped_gemm"; },
                 [](const Attention&) -> std::string_view { return "attention"; },
                 [](const Rowwise& w) { return to_word(w.kind); },
                 [](const Collective& w) { return to_word(w.kind); },
                 [](const SendRecv&) -> std::string_view { return "send_recv"; },
                 [](const Update& w) -> std::string_view {
                   return w.optimizer == OptimizerKind::adam ? "adamw" : to_word(w.optimizer);
                 },
                 [](const HostCopy&) -> std::string_view { return "host_copy"; },
                 [](const HostAdam&) -> std::string_view { return "host_adam"; },
                 [](const Join&) -> std::string_view { return "join"; },
                 [](const GatedDeltaRule&) -> std::string_view { return "gated_delta_rule"; },
                 [](const StateSpaceScan&) -> std::string_view { return "state_space_scan"; },
                 [](const Muon&) -> std::string_view { return "muon"; }},
      work);
}

std::string to_string(const Work& work) {
  return std::visit(
      Overloaded{
          [](const Gemm& w) {
            const std::string batch = w.batch > 1 ? fmt::format("{} x ", w.batch) : "";
            return fmt::format("gemm {}{}x{}x{} {}{}", batch, w.m, w.n, w.k, to_word(w.dtype),
                               w.accumulate_fp32 ? " +fp32"
                               : w.adds          ? " +="
                                                 : "");
          },
          [](const GroupedGemm& w) {
            return fmt::format("{} {} experts {}x{}x{} {}{}", grouped_name(w), w.groups, w.rows,
                               w.n, w.k, to_word(w.dtype),
                               w.accumulate_fp32 ? " +fp32"
                               : w.adds          ? " +="
                                                 : "");
          },
          [](const Attention& w) { return attention_text(w); },
          [](const Rowwise& w) {
            return fmt::format("{} {}x{} {}{}", to_word(w.kind), w.rows, w.cols, to_word(w.dtype),
                               w.fused ? "" : " unfused");
          },
          [](const Collective& w) {
            return fmt::format("{} {} {}{}", to_word(w.kind), to_word(w.axis), bytes_text(w.bytes),
                               w.expert_parallel_library ? " ep-library" : "");
          },
          [](const SendRecv& w) {
            return fmt::format("send_recv {} {}", to_word(w.axis), bytes_text(w.bytes));
          },
          [](const Update& w) { return fmt::format("{} {} params", kind_name(w), w.params); },
          [](const HostCopy& w) {
            return fmt::format("host_copy {} {}", w.to_host ? "to host" : "to device",
                               bytes_text(w.bytes));
          },
          [](const HostAdam& w) {
            return fmt::format("host_adam {} params{}", w.params, w.nvme ? " nvme" : "");
          },
          [](const Join&) { return std::string("join"); },
          [](const GatedDeltaRule& w) { return delta_rule_text(w); },
          [](const StateSpaceScan& w) { return scan_text(w); },
          [](const Muon& w) {
            return fmt::format("muon {:.3g} x {}x{}", w.matrices, w.rows, w.cols);
          }},
      work);
}

std::uint64_t hash_of(const Work& work) {
  Hasher hasher;
  hasher.add(work.index());
  std::visit(
      [&](const auto& w) {
        each_field(w, [&](const auto&... field) { (hasher.add(field), ...); });
      },
      work);
  return hasher.result();
}

}  // namespace qplan
