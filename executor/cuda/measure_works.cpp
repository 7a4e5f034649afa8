// How each kind of work is enqueued once, on the pool's next operands.

#include <random>
#include <variant>

#include "executor/cuda/measure_device.h"
#include "models/overloaded.h"

namespace qplan {
std::function<void()> MeasuringDevice::any(const Work& work) {
  fill();
  return std::visit(
      Overloaded{
          [&](const Gemm& w) { return once(w); }, [&](const GroupedGemm& w) { return once(w); },
          [&](const Attention& w) { return once(w); }, [&](const Rowwise& w) { return once(w); },
          [&](const Update& w) { return once(w); }, [&](const Collective& w) { return once(w); },
          [&](const SendRecv& w) { return once(w); },
          [](const auto&) { return std::function<void()>(); }},
      work);
}

// The forward product of a linear layer, or with `accumulate_fp32` its weight gradient.
std::function<void()> MeasuringDevice::once(const Gemm& w) {
  constexpr int kFirstWithFp8 = 89;  // Ada and Hopper
  if (w.dtype == DType::fp8 && w.batch == 1 && facts.compute_capability >= kFirstWithFp8) {
    return narrow(w);
  }
  if (w.dtype != DType::bf16 || w.batch != 1) return {};
  const bool gradient = w.accumulate_fp32;
  const ProductShape shape{.m = w.m,
                           .n = w.n,
                           .k = w.k,
                           .a_stride = gradient ? w.m : w.k,
                           .b_stride = gradient ? w.n : w.k,
                           .c_stride = w.n,
                           .a_transposed = gradient,
                           .b_transposed = !gradient,
                           .accumulate = gradient || w.adds,
                           .out = gradient ? DType::fp32 : DType::bf16};
  return [this, shape] {
    const bf16* a = numbers(shape.m * shape.k);
    const bf16* b = numbers(shape.k * shape.n);
    void* c = take(shape.m * shape.n * (shape.out == DType::fp32 ? 4 : 2));
    blas.multiply(shape, a, b, c, stream.get());
  };
}

// Of bf16 what was drawn, of fp8 what fill_narrow() has left in the pool.
std::function<void()> MeasuringDevice::heater(DType format) {
  constexpr std::int64_t n = kHeaterSide, kBytes = 2 * n * n;
  const bool narrow = format != DType::bf16;
  const ProductShape shape{.m = n,
                           .n = n,
                           .k = n,
                           .a_stride = n,
                           .b_stride = n,
                           .c_stride = n,
                           .b_transposed = true,
                           .a = format,
                           .b = format};
  if (heating == nullptr) heating = device_memory(3 * kBytes);
  for (std::int64_t at = 0; at < 2 * kBytes; at += kSeedBytes) {
    check(cudaMemcpyAsync(heating.get() + at, narrow ? pool.get() : drawn.get(), kSeedBytes,
                          cudaMemcpyDeviceToDevice, stream.get()));
  }
  return [this, shape, narrow] {
    const auto* scale = static_cast<const float*>(static_cast<void*>(scratch.get()));
    std::byte* const a = heating.get();
    blas.multiply(shape, a, a + kBytes, a + 2 * kBytes, stream.get(),
                  narrow ? ProductScales{scale, scale} : ProductScales{});
  };
}

// In fp8 both contracted sides lie in rows; a weight gradient's first operand is a gradient.
std::function<void()> MeasuringDevice::narrow(const Gemm& w) {
  const bool gradient = w.accumulate_fp32;
  const ProductShape shape{.m = w.m,
                           .n = w.n,
                           .k = w.k,
                           .a_stride = w.k,
                           .b_stride = w.k,
                           .c_stride = w.n,
                           .b_transposed = true,
                           .accumulate = gradient,
                           .a = gradient ? DType::fp8_e5m2 : DType::fp8,
                           .b = DType::fp8,
                           .out = gradient ? DType::fp32 : DType::bf16,
                           .fast_accumulation = !gradient};
  fill_narrow();
  // Apart from the operands: what is left there may be no number in fp8.
  if (const std::int64_t bytes = shape.m * shape.n * 4; bytes > product_bytes) {
    product.reset();
    product = device_memory(bytes);
    product_bytes = bytes;
  }
  check(cudaMemset(product.get(), 0, static_cast<std::size_t>(product_bytes)));
  return [this, shape] {
    const void* a = take(shape.m * shape.k);
    const void* b = take(shape.k * shape.n);
    const auto* scale = static_cast<const float*>(static_cast<void*>(scratch.get()));
    blas.multiply(shape, a, b, product.get(), stream.get(), {scale, scale});
  };
}

// Rows of groups as a router without preferences gives them: each row draws its group.
std::function<void()> MeasuringDevice::once(const GroupedGemm& w) {
  if (w.dtype != DType::bf16 || !kernels::has_grouped_products()) return {};
  const auto groups = static_cast<std::size_t>(w.groups);
  std::vector<std::int32_t> rows(groups, 0);
  std::mt19937 generator(1);
  std::uniform_int_distribution<std::size_t> any(0, groups - 1);
  for (std::int64_t i = 0; i < w.rows; ++i) ++rows[any(generator)];
  group_rows = device_memory(4 * w.groups);
  check(cudaMemcpy(group_rows.get(), rows.data(), 4 * groups, cudaMemcpyHostToDevice));
  const void* memory = group_rows.get();
  const kernels::RowGroups row_groups{static_cast<const std::int32_t*>(memory),
                                      static_cast<int>(w.groups)};
  const std::int64_t weight = w.n * w.k;
  if (w.weight_gradient) {
    return [=, this] {
      const bf16* dy = numbers(w.rows * w.n);
      kernels::grouped_weight_gradient({floats(w.groups * weight), w.n, w.k, weight}, dy,
                                       numbers(w.rows * w.k), row_groups, w.rows, stream.get());
    };
  }
  return [=, this] {
    bf16* y = numbers(w.rows * w.n);
    const bf16* x = numbers(w.rows * w.k);
    kernels::grouped_forward(y, x, {numbers(w.groups * weight), w.n, w.k, weight}, row_groups,
                             w.rows, stream.get());
  };
}

std::function<void()> MeasuringDevice::once(const Attention& w) {
  const std::int64_t bytes = attention.prepare(w);
  if (bytes > attention_bytes) {
    attention_scratch.reset();
    attention_scratch = device_memory(bytes);
    attention_bytes = bytes;
  }
  return [this, w] {
    const std::int64_t q = w.batch * w.q_len * w.heads, k = w.batch * w.kv_len * w.kv_heads;
    AttentionOperands o{.q = numbers(q * w.head_dim),
                        .k = numbers(k * w.head_dim),
                        .v = numbers(k * w.v_head_dim),
                        .out = numbers(q * w.v_head_dim),
                        .log_sum_exp = floats(q)};
    if (w.pass == Pass::backward) {
      o.dout = numbers(q * w.v_head_dim);
      o.dq = numbers(q * w.head_dim);
      o.dk = numbers(k * w.head_dim);
      o.dv = numbers(k * w.v_head_dim);
    }
    attention.run(w, o, attention_scratch.get(), stream.get());
  };
}

// Heads of 128, four of queries for one of keys, normed and turned by whatever the angles are, as
// attention_part.cpp's fused op: forward (q + 2 kv) heads wide, backward (3 q + 5 kv) / 2.
std::function<void()> MeasuringDevice::turned_heads(const Rowwise& w) {
  constexpr std::int64_t dim = 128;
  const bool forward = w.kind == RowwiseKind::rope;
  const std::int64_t kv = forward ? w.cols / (6 * dim) : 2 * w.cols / (17 * dim), q = 4 * kv;
  auto* part = static_cast<float*>(static_cast<void*>(scratch.get()));
  return [=, this, rows = w.rows] {
    const std::int64_t n = rows * (q + 2 * kv) * dim;
    const kernels::PackedHeads heads{numbers(n),
                                     numbers(rows * q * dim),
                                     numbers(rows * kv * dim),
                                     numbers(rows * kv * dim),
                                     rows,
                                     q,
                                     kv,
                                     dim};
    const kernels::Rotation rotation{dim, static_cast<const float2*>(take(rows * dim * 4)),
                                     zeros(rows)};
    const kernels::HeadNorms norms{numbers(dim), numbers(dim), 1e-6F};
    if (forward) return kernels::split_normed_heads(heads, rotation, norms, stream.get());
    kernels::pack_normed_heads(numbers(n), floats(dim), floats(dim), heads, rotation, norms, part,
                               stream.get());
  };
}

// Eight of a layer's experts a token, as many of Qwen3's choose; visits are counted, for its
// balance loss.
std::function<void()> MeasuringDevice::routed(const Rowwise& w) {
  const kernels::Router router{.experts = w.cols, .top_k = 8};
  const std::int64_t n = w.rows * w.cols, rows = w.rows;
  const kernels::Sequences sequences{0, rows};
  void* const memory = scratch.get();
  auto* const counted = static_cast<std::int32_t*>(memory);
  std::int32_t* const choices = zeros(rows * 2 * router.top_k);
  if (w.kind == RowwiseKind::router_backward) {
    return [=, this] {
      kernels::route_backward(floats(n), floats(n), floats(rows * router.top_k), choices,
                              ints(w.cols), 1e-6F, router, sequences, rows, stream.get());
    };
  }
  return [=, this] {
    void* const map = take(rows * 2 * router.top_k * 4);
    kernels::route(floats(n), static_cast<std::int32_t*>(map), counted, ints(w.cols), floats(n),
                   router, sequences, 1, {}, rows, counted + w.cols, stream.get());
  };
}

// Copies of tokens to 8 of 128 experts: sorted by expert, summed by token, or, of two ranks,
// grouped by expert.
std::function<void()> MeasuringDevice::permuted(const Rowwise& w) {
  const kernels::Router router{.experts = 128, .top_k = 8};
  constexpr std::int64_t kSources = 2;
  const std::int64_t tokens = w.rows / router.top_k, cols = w.cols,
                     local = router.experts / kSources;
  const std::int64_t map_bytes = round_up(2 * w.rows * 4);
  row_map = device_memory(map_bytes + 4 * kSources * router.experts);
  void *const memory = row_map.get(), *const behind = row_map.get() + map_bytes;
  auto* const map = static_cast<std::int32_t*>(memory);
  auto* const counts = static_cast<std::int32_t*>(behind);
  const std::vector<std::int32_t> even(static_cast<std::size_t>(kSources * router.experts),
                                       static_cast<std::int32_t>(w.rows / (kSources * local)));
  void* const free = scratch.get();
  auto* const free_counts = static_cast<std::int32_t*>(free);
  kernels::route(floats(tokens * router.experts), map, free_counts, nullptr,
                 floats(tokens * router.experts), router, {0, tokens}, 1, {}, tokens,
                 free_counts + router.experts, stream.get());
  check(cudaMemcpy(counts, even.data(), 4 * even.size(), cudaMemcpyHostToDevice));
  if (w.kind == RowwiseKind::unpermute) {
    return [=, this] {
      kernels::sum_copies(numbers(tokens * cols), nullptr, numbers(w.rows * cols), map, nullptr,
                          router.top_k, tokens, cols, stream.get());
    };
  }
  if (w.kind == RowwiseKind::permute) {
    return [=, this] {
      kernels::sort_tokens(numbers(w.rows * cols), nullptr, numbers(tokens * cols), map, nullptr,
                           router, tokens, cols, stream.get());
    };
  }
  const kernels::Arrivals arrivals{counts, kSources, router.experts, 0, local};
  return [=, this] {
    kernels::group_rows(numbers(w.rows * cols), nullptr, numbers(w.rows * cols), nullptr, arrivals,
                        true, w.rows, cols, stream.get());
  };
}

// Tokens of any words of a vocabulary, as they lie in a batch and as the forward pass has kept
// them.
std::function<void()> MeasuringDevice::looked_up(const Rowwise& w) {
  constexpr std::int64_t kWords = 1 << 17;
  const auto tokens = static_cast<std::size_t>(w.rows);
  std::vector<std::int32_t> ids(tokens);
  std::mt19937 generator(1);
  std::uniform_int_distribution<std::int32_t> any(0, kWords - 1);
  for (std::int32_t& id : ids) id = any(generator);
  const std::vector<std::int64_t> wide(ids.begin(), ids.end());
  const std::int64_t wide_bytes = round_up(8 * w.rows);
  words = device_memory(wide_bytes + 4 * w.rows);
  void *const memory = words.get(), *const behind = words.get() + wide_bytes;
  check(cudaMemcpy(memory, wide.data(), 8 * tokens, cudaMemcpyHostToDevice));
  check(cudaMemcpy(behind, ids.data(), 4 * tokens, cudaMemcpyHostToDevice));
  auto* const kept = static_cast<std::int64_t*>(memory);
  const auto* const narrow = static_cast<const std::int32_t*>(behind);
  if (w.kind == RowwiseKind::embedding) {
    return [=, this] {
      kernels::embed(numbers(w.rows * w.cols), kept, numbers(kWords * w.cols), 0, kWords, narrow,
                     {}, w.rows, w.cols, stream.get());
    };
  }
  return [=, this] {
    check(kernels::embed_backward(floats(kWords * w.cols), numbers(w.rows * w.cols), 0, kWords,
                                  kept, w.rows, w.cols, scratch.get(), stream.get()));
  };
}

std::function<void()> MeasuringDevice::once(const Rowwise& w) {
  const std::int64_t r = w.rows, c = w.cols, n = r * c;
  auto* part = static_cast<float*>(static_cast<void*>(scratch.get()));
  auto* sums = static_cast<double*>(static_cast<void*>(scratch.get()));
  switch (w.kind) {
    case RowwiseKind::rms_norm:
      return [=, this] {
        kernels::rms_norm(numbers(n), {1, c}, numbers(n), {1, c}, numbers(c), r, c, 1e-6F,
                          stream.get());
      };
    case RowwiseKind::rms_norm_backward:
      return [=, this] {
        kernels::rms_norm_backward({numbers(n),
                                    floats(c),
                                    numbers(n),
                                    numbers(n),
                                    numbers(c),
                                    numbers(n),
                                    {1, c},
                                    {1, c},
                                    {1, c}},
                                   r, c, 1e-6F, part, stream.get());
      };
    case RowwiseKind::swiglu:
      return [=, this] {
        kernels::activate(kernels::Activation::swiglu, numbers(n), numbers(2 * n), nullptr, r, c,
                          stream.get());
      };
    case RowwiseKind::swiglu_backward:
      return [=, this] {
        kernels::activate_backward(kernels::Activation::swiglu, numbers(2 * n), nullptr,
                                   numbers(2 * n), numbers(n), nullptr, r, c, stream.get());
      };
    case RowwiseKind::add:
      return
          [=, this] { kernels::add(numbers(n), numbers(n), numbers(n), nullptr, n, stream.get()); };
    case RowwiseKind::copy:
      return [=, this] {
        check(cudaMemcpyAsync(numbers(n), numbers(n), static_cast<std::size_t>(2 * n),
                              cudaMemcpyDeviceToDevice, stream.get()));
      };
    case RowwiseKind::rope:
    case RowwiseKind::rope_backward:
      return turned_heads(w);
    case RowwiseKind::amax:
      return [=, this] { kernels::quantization_scale(part, numbers(n), n, stream.get()); };
    case RowwiseKind::quantize:
      return [=, this] {
        kernels::quantize(take(n), numbers(n), floats(1), kernels::Fp8::e4m3, n, stream.get());
      };
    case RowwiseKind::sum_of_squares:
      return [=, this] { kernels::sum_of_squares(sums, floats(n), n, sums + 1, stream.get()); };
    case RowwiseKind::cross_entropy:
      return [=, this] {
        kernels::cross_entropy(floats(r), floats(r), numbers(n), {0, c}, zeros(r), true, r, c,
                               stream.get());
      };
    case RowwiseKind::cross_entropy_backward:
      return [=, this] {
        kernels::cross_entropy_backward(numbers(n), numbers(n), floats(r), {0, c}, zeros(r), 1, r,
                                        c, stream.get());
      };
    case RowwiseKind::router:
    case RowwiseKind::router_backward:
      return routed(w);
    case RowwiseKind::permute:
    case RowwiseKind::unpermute:
    case RowwiseKind::group_rows:
      return permuted(w);
    case RowwiseKind::scale_rows:
      return
          [=, this] { kernels::scale_rows(numbers(n), numbers(n), floats(r), r, c, stream.get()); };
    case RowwiseKind::scale_rows_backward:
      return [=, this] {
        kernels::scale_rows_backward(numbers(n), floats(r), numbers(n), numbers(n), floats(r), r, c,
                                     stream.get());
      };
    case RowwiseKind::layer_norm:
      return [=, this] {
        kernels::layer_norm(numbers(n), numbers(n), {numbers(c), numbers(c), 0}, r, c, 1e-5F,
                            stream.get());
      };
    case RowwiseKind::layer_norm_backward:
      return [=, this] {
        kernels::layer_norm_backward({numbers(n),
                                      floats(c),
                                      floats(c),
                                      numbers(n),
                                      numbers(n),
                                      numbers(n),
                                      {numbers(c), numbers(c), 0}},
                                     r, c, 1e-5F, part, stream.get());
      };
    case RowwiseKind::gelu:
      return [=, this] {
        kernels::activate(kernels::Activation::gelu_tanh, numbers(n), numbers(n), nullptr, r, c,
                          stream.get());
      };
    case RowwiseKind::gelu_backward:
      return [=, this] {
        kernels::activate_backward(kernels::Activation::gelu_tanh, numbers(n), nullptr, numbers(n),
                                   numbers(n), nullptr, r, c, stream.get());
      };
    case RowwiseKind::embedding:
    case RowwiseKind::embedding_backward:
      return looked_up(w);
    case RowwiseKind::zero_fill:
      return [=, this] {
        check(cudaMemsetAsync(floats(n), 0, static_cast<std::size_t>(4 * n), stream.get()));
      };
    case RowwiseKind::accumulate:
    case RowwiseKind::dropout_add:
    case RowwiseKind::dropout_add_backward:
    case RowwiseKind::cast:
    case RowwiseKind::dequantize:
    case RowwiseKind::chunk_cat:
    case RowwiseKind::masked_fill:
    case RowwiseKind::halves_swiglu:
    case RowwiseKind::halves_swiglu_backward:
    case RowwiseKind::weigh_rows:
    case RowwiseKind::weigh_rows_backward:
    case RowwiseKind::index_put:
    case RowwiseKind::expert_bias:
    case RowwiseKind::expert_bias_backward:
    case RowwiseKind::clamp:
    case RowwiseKind::clamp_backward:
    case RowwiseKind::causal_conv:
    case RowwiseKind::causal_conv_backward:
    case RowwiseKind::l2_norm:
    case RowwiseKind::l2_norm_backward:
    case RowwiseKind::gated_norm:
    case RowwiseKind::gated_norm_backward:
    case RowwiseKind::decay_gates:
    case RowwiseKind::decay_gates_backward:
    case RowwiseKind::mamba_conv:
    case RowwiseKind::mamba_conv_backward:
    case RowwiseKind::group_norm:
    case RowwiseKind::gated_group_norm:
    case RowwiseKind::group_norm_backward:
    case RowwiseKind::scale:
      break;
  }
  return {};
}

std::function<void()> MeasuringDevice::once(const Update& w) {
  return [this, n = w.params] {
    const kernels::AdamW settings{1e-3F, 0.9F, 0.95F, 1e-8F, 0.1F, 0.1F, 0.05F, 0, nullptr};
    kernels::adamw(numbers(n), floats(n), floats(n), floats(n), floats(n), n, settings,
                   stream.get());
  };
}

std::function<void()> MeasuringDevice::once(const Collective& w) {
  if (group == nullptr) return {};
  const auto count = static_cast<std::int64_t>(w.bytes.value() / 2);
  const auto share = static_cast<std::size_t>(count / group_size);
  switch (w.kind) {
    case CollectiveKind::all_reduce:
      return [=, this] {
        void* x = numbers(count);
        check(ncclAllReduce(x, x, static_cast<std::size_t>(count), ncclBfloat16, ncclSum, group,
                            stream.get()));
      };
    case CollectiveKind::all_gather:
      return [=, this] {
        check(ncclAllGather(numbers(count), numbers(count), share, ncclBfloat16, group,
                            stream.get()));
      };
    case CollectiveKind::reduce_scatter:
      return [=, this] {
        check(ncclReduceScatter(numbers(count), numbers(count), share, ncclBfloat16, ncclSum, group,
                                stream.get()));
      };
    case CollectiveKind::all_to_all:
      return [=, this] {
        bf16 *from = numbers(count), *to = numbers(count);
        check(ncclGroupStart());
        for (int peer = 0; peer < group_size; ++peer) {
          const std::size_t at = share * static_cast<std::size_t>(peer);
          check(ncclSend(from + at, share, ncclBfloat16, peer, group, stream.get()));
          check(ncclRecv(to + at, share, ncclBfloat16, peer, group, stream.get()));
        }
        check(ncclGroupEnd());
      };
    case CollectiveKind::broadcast:
      break;
  }
  return {};
}

// A step of a ring: to the next rank of the group, from the one before.
std::function<void()> MeasuringDevice::once(const SendRecv& w) {
  if (group == nullptr) return {};
  const auto count = static_cast<std::int64_t>(w.bytes.value() / 2);
  const int own = static_cast<int>(process.rank) % group_size;
  return [=, this] {
    const auto elements = static_cast<std::size_t>(count);
    check(ncclGroupStart());
    check(ncclSend(numbers(count), elements, ncclBfloat16, (own + 1) % group_size, group,
                   stream.get()));
    check(ncclRecv(numbers(count), elements, ncclBfloat16, (own + group_size - 1) % group_size,
                   group, stream.get()));
    check(ncclGroupEnd());
  };
}

}  // namespace qplan
