#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "costmodel/price/interpolate.h"
#include "costmodel/price/price.h"
#include "tests/costmodel/machine.h"
#include "tests/costmodel/rates.h"

using namespace qplan;

namespace {

// The same machine without its tables: closed forms only.
HardwareProfile formulas_of(const std::string& name) {
  HardwareProfile profile = machine(name);
  profile.gemm_tables.clear();
  profile.collective_tables.clear();
  return profile;
}

// As the tables' makers measured it: in a short burst.
double burst_teraflops(const Gemm& work, const std::string& name) {
  HardwareProfile burst = machine(name);
  burst.gemm.at(Precision::bf16).sustain = 1;
  return teraflops(work, burst);
}

}  // namespace

TEST_CASE("measured bursts come back from the table") {
  // aiconfigurator gemm tables, bf16, TFLOP/s
  CHECK(burst_teraflops({.m = 4096, .n = 4096, .k = 4096}, "h100-sxm") ==
        doctest::Approx(789).epsilon(0.01));
  CHECK(burst_teraflops({.m = 4096, .n = 8192, .k = 8192}, "h100-sxm") ==
        doctest::Approx(817).epsilon(0.01));
  CHECK(burst_teraflops({.m = 256, .n = 4096, .k = 4096}, "h100-sxm") ==
        doctest::Approx(459).epsilon(0.01));
  CHECK(burst_teraflops({.m = 4096, .n = 768, .k = 2048}, "h100-sxm") ==
        doctest::Approx(668).epsilon(0.01));
  CHECK(burst_teraflops({.m = 4096, .n = 4096, .k = 256}, "h100-sxm") ==
        doctest::Approx(394).epsilon(0.01));
  CHECK(burst_teraflops({.m = 4096, .n = 4096, .k = 4096}, "a100-80gb-sxm") ==
        doctest::Approx(267).epsilon(0.01));
  CHECK(burst_teraflops({.m = 4096, .n = 8192, .k = 8192}, "gb200") ==
        doctest::Approx(1505).epsilon(0.01));
  CHECK(gemm_price({.m = 4096, .n = 4096, .k = 4096}, machine("h100-sxm")).source ==
        PriceSource::table);
}

TEST_CASE("long runs slow down arithmetic, not what only reads its weights") {
  for (const char* name : {"a100-80gb-sxm", "h100-sxm", "b200"}) {
    HardwareProfile burst = machine(name);
    const double sustain = burst.gemm.at(Precision::bf16).sustain;
    burst.gemm.at(Precision::bf16).sustain = 1;
    const auto slower = [&](std::int64_t rows) {
      const Gemm work{.m = rows, .n = 8192, .k = 8192};
      return gemm_price(work, machine(name)).time / gemm_price(work, burst).time;
    };
    CHECK(slower(1) == doctest::Approx(1).epsilon(1e-6));
    CHECK(slower(16384) == doctest::Approx(1 / sustain).epsilon(1e-3));
    CHECK(slower(256) > slower(1));
    CHECK(slower(256) < slower(16384));
  }
}

TEST_CASE("the closed form is the one of the header, by hand") {
  HardwareProfile p = formulas_of("h100-sxm");
  p.gemm[Precision::bf16].sustain = 1;
  const double m = 4096, n = 1024, k = 2048;
  const double compute = 2 * m * n * k / (989e12 * 0.805) * (1 + 36 / m) * 1 * (1 + 101 / k);
  const double memory = 2 * (m * k + k * n + m * n) / (0.793 * 3.35e12);
  const double expected = 2.94e-6 + std::pow(std::pow(compute, 4) + std::pow(memory, 4), 0.25);
  const Price got = gemm_price({.m = 4096, .n = 1024, .k = 2048}, p);
  CHECK(got.time.value() == doctest::Approx(expected).epsilon(1e-12));
  CHECK(got.source == PriceSource::formula);
}

TEST_CASE("table and closed form agree on large products") {
  // physics: 4-5% median for m >= 1024 and n, k >= 512, p90 9-15%
  for (const char* name : {"a100-80gb-sxm", "h100-sxm", "h200-sxm", "b200", "gb200"}) {
    CAPTURE(name);
    const HardwareProfile formulas = formulas_of(name);
    std::vector<double> errors;
    for (const std::int64_t m : {1024, 3000, 8192}) {
      for (const std::int64_t n : {1280, 4096, 7000, 14336}) {
        for (const std::int64_t k : {768, 2048, 5120, 12288}) {
          const Gemm gemm{.m = m, .n = n, .k = k};
          errors.push_back(error_of(gemm_price(gemm, formulas).time.value(),
                                    gemm_price(gemm, machine(name)).time.value()));
        }
      }
    }
    std::sort(errors.begin(), errors.end());
    CHECK(errors[errors.size() / 2] < 0.08);
    CHECK(errors[errors.size() * 9 / 10] < 0.20);
  }
}

TEST_CASE("an H200 in training runs at what was measured there, random data, warm") {
  // 16 (n, k) at m >= 1024 with one scalar 0.87: 3.6% median, 12% p90; four of them, 8192 rows
  const HardwareProfile& h200 = machine("h200-sxm");
  // 8192^3: 788 TFLOP/s random data in a burst; sustained fit .703/((1+1/m)(1+45/n)(1+124/k)) of
  // 989
  for (const auto& [n, k] : {std::pair{6144, 4096}, {4096, 4096}, {10240, 5120}, {24576, 4096}}) {
    CAPTURE(n);
    CAPTURE(k);
    const double sustained = 0.703 * 989 / ((1 + 45.0 / n) * (1 + 124.0 / k));
    CHECK(error_of(teraflops(Gemm{.m = 8192, .n = n, .k = k}, h200), sustained) < 0.13);
  }
}

TEST_CASE("a product with more rows is never cheaper by more than the table's noise") {
  // Measured steps of a wave make real times fall by up to 2% between close sizes.
  for (const char* name : {"a100-80gb-sxm", "h100-sxm", "b200"}) {
    for (const std::int64_t n : {256, 1000, 5120, 28672}) {
      for (const std::int64_t k : {256, 2048, 5000, 14336}) {
        double previous = 0;
        for (double m = 32; m < 100000; m *= 1.07) {
          const Gemm gemm{.m = static_cast<std::int64_t>(m), .n = n, .k = k};
          const double time = gemm_price(gemm, machine(name)).time.value();
          CHECK(time >= 0.97 * previous);
          if (previous > 0) CHECK(time <= previous * 1.2);  // and no step at the table's edge
          previous = time;
        }
      }
    }
  }
}

TEST_CASE("between measured points utilisation stays between its neighbours") {
  GemmTable table{.m = {100, 200}, .n = {10, 20}, .k = {1, 2}, .utilisation = {}};
  table.utilisation = {0.1F, 0.2F, 0.1F, 0.2F, 0.4F, 0.8F, 0.4F, 0.8F};
  CHECK(*utilisation_at(table, {100, 10, 1}) == doctest::Approx(0.1));
  CHECK(*utilisation_at(table, {200, 20, 2}) == doctest::Approx(0.8));
  // half way in the logarithms of m and k: the geometric mean
  CHECK(*utilisation_at(table, {100 * std::sqrt(2.0), 15, std::sqrt(2.0)}) ==
        doctest::Approx(std::sqrt(0.1 * 0.8)));
  table.utilisation[7] = std::nanf("");
  CHECK_FALSE(utilisation_at(table, {150, 15, 1.5}).has_value());
  CHECK(utilisation_at(table, {150, 10, 1.5}).has_value());  // does not touch the hole
}

TEST_CASE("fp8 is faster than bf16 on large products, by less than twice") {
  for (const char* name : {"h100-sxm", "h200-sxm", "b200", "gb200"}) {
    CAPTURE(name);
    const Gemm bf16{.m = 8192, .n = 8192, .k = 8192};
    Gemm fp8 = bf16;
    fp8.dtype = DType::fp8;
    const double gain = gemm_price(bf16, machine(name)).time / gemm_price(fp8, machine(name)).time;
    CHECK(gain > 1.3);
    CHECK(gain < 2.5);
  }
  // A GPU without fp8 runs it in bf16 and says that it guesses.
  CHECK(gemm_price({.m = 64, .n = 64, .k = 64, .dtype = DType::fp8}, machine("a100-80gb-sxm"))
            .source == PriceSource::assumed);
}

TEST_CASE("accumulating into fp32 costs its traffic where the product is thin") {
  const HardwareProfile& p = machine("h100-sxm");
  const auto ratio = [&](std::int64_t contracted) {
    const Gemm plain{.m = 4096, .n = 14336, .k = contracted};
    Gemm accumulating = plain;
    accumulating.accumulate_fp32 = true;
    return gemm_price(accumulating, p).time / gemm_price(plain, p).time;
  };
  CHECK(ratio(16384) < 1.05);  // 0.95-0.986 of the rate for large shapes (SimuMax)
  CHECK(ratio(512) > 1.2);
}

TEST_CASE("a batch of products costs at least its parts' FLOPs and less than one by one") {
  const HardwareProfile& p = machine("h100-sxm");
  const Seconds one = gemm_price({.m = 512, .n = 512, .k = 128}, p).time;
  const Seconds batch = gemm_price({.m = 512, .n = 512, .k = 128, .batch = 64}, p).time;
  CHECK(batch > 4 * one);
  CHECK(batch < 64 * one);
}

TEST_CASE("grouped products meet the H200's measurements within 16%") {
  // torch grouped_mm, bf16 gradients, microseconds: experts, rows an expert, k, n, fwd, dgrad,
  // wgrad
  struct Row {
    std::int64_t experts, rows, k, n;
    double forward, dgrad, wgrad;
  };
  const HardwareProfile& p = machine("h200-sxm");
  double sum = 0;
  int count = 0;
  for (const Row& r : {Row{16, 2048, 2048, 1536, 284.8, 293.3, 319.9},
                       Row{16, 2048, 768, 2048, 173.6, 152.2, 167.8},
                       Row{16, 4096, 2048, 1536, 650.8, 653.2, 615.9},
                       Row{16, 4096, 768, 2048, 397.9, 330.4, 311.5},
                       Row{16, 8192, 2048, 1536, 1309.4, 1325.4, 1243.8},
                       Row{16, 8192, 768, 2048, 792.6, 665.5, 630.1},
                       Row{128, 256, 2048, 1536, 351.2, 383.7, 582.1},
                       Row{128, 256, 768, 2048, 222.8, 191.6, 305.4},
                       Row{128, 1024, 2048, 1536, 1329.3, 1354.2, 1497.9},
                       Row{128, 1024, 768, 2048, 815.8, 654.0, 769.4}}) {
    CAPTURE(r.experts);
    CAPTURE(r.rows);
    CAPTURE(r.k);
    const std::int64_t rows = r.experts * r.rows;
    const auto check = [&](const GroupedGemm& work, double measured) {
      const double error = error_of(grouped_gemm_price(work, p).time.value() * 1e6, measured);
      CHECK(error < 0.165);
      sum += error;
      ++count;
    };
    check({.groups = r.experts, .rows = rows, .n = r.n, .k = r.k}, r.forward);
    check({.groups = r.experts, .rows = rows, .n = r.k, .k = r.n}, r.dgrad);
    check({.groups = r.experts, .rows = rows, .n = r.n, .k = r.k, .weight_gradient = true},
          r.wgrad);
  }
  CHECK(sum / count < 0.055);
}

// SimuMax's config of a B200 (4dcaae5): Transformer Engine's bf16 products, alone on the GPU.
// Steps of training run them a tenth slower, whatever the shape: the profile's sustained rate.
TEST_CASE("large products on a B200 differ by a few percent, as Transformer Engine's do") {
  struct Row {
    std::int64_t m, n, k;
    double share;  // of 2250 TFLOP/s
  };
  for (const Row& r :
       {Row{4096, 28672, 8192, .494}, Row{4096, 8192, 28672, .485}, Row{4096, 8192, 14336, .476},
        Row{4096, 14336, 8192, .494}, Row{4096, 53248, 16384, .489}, Row{4096, 16384, 53248, .511},
        Row{4096, 16384, 26624, .508}, Row{4096, 13312, 16384, .495}, Row{8192, 8192, 14336, .498},
        Row{16384, 5120, 12288, .500}, Row{4096, 64128, 8192, .490}}) {
    CAPTURE(r.n);
    CAPTURE(r.k);
    const double share =
        teraflops(Gemm{.m = r.m, .n = r.n, .k = r.k}, machine("b200-half-rate")) / 2250;
    CHECK(error_of(share, 0.9 * r.share) < 0.05);
  }
}

TEST_CASE("grouped products meet the B200's measurements within 16%, slowed as others are") {
  // SimuMax, Transformer Engine, n = 4096, k = 7168: share of 2250 TFLOP/s, alone on the GPU
  constexpr double kInSteps = 0.65 / 0.7;  // of the sustained rate that their form was fitted with
  struct Row {
    std::int64_t rows;
    double forward, dgrad, wgrad;
  };
  const HardwareProfile& p = machine("b200-half-rate");
  for (const Row& r : {Row{1024, .457, .435, .289}, Row{512, .367, .405, .219},
                       Row{256, .271, .333, .147}, Row{128, .208, .226, .077}}) {
    CAPTURE(r.rows);
    const std::int64_t rows = 8 * r.rows;
    const auto share = [&](const GroupedGemm& work) {
      return teraflops(work, p) / 2250 / kInSteps;
    };
    CHECK(error_of(share({.groups = 8, .rows = rows, .n = 4096, .k = 7168}), r.forward) < 0.165);
    CHECK(error_of(share({.groups = 8, .rows = rows, .n = 7168, .k = 4096}), r.dgrad) < 0.165);
    CHECK(error_of(share({.groups = 8,
                          .rows = rows,
                          .n = 4096,
                          .k = 7168,
                          .weight_gradient = true,
                          .accumulate_fp32 = true}),
                   r.wgrad) < 0.165);
  }
}

TEST_CASE("memory-bound work runs at the bandwidth copies reach, plus its launches") {
  const HardwareProfile& p = machine("h100-sxm");
  const Rowwise copy{.kind = RowwiseKind::copy, .rows = 4096, .cols = 8192};
  CHECK(rowwise_price(copy, p).time.value() ==
        doctest::Approx(4.0 * 4096 * 8192 / (0.9 * 3.35e12) + 3e-6));
  const Rowwise permute{.kind = RowwiseKind::permute, .rows = 4096, .cols = 8192};
  CHECK(rowwise_price(permute, p).time > rowwise_price(copy, p).time);
  const Rowwise eager{.kind = RowwiseKind::rms_norm, .rows = 1, .cols = 1, .fused = false};
  CHECK(rowwise_price(eager, p).time.value() == doctest::Approx(8 * 3e-6).epsilon(1e-3));
}

TEST_CASE("grouping rows by expert has a price of its own, or that of sorting tokens") {
  HardwareProfile p = machine("h100-sxm");
  p.gpu.memory_efficiency_of[RowwiseKind::permute] = 0.5;
  p.gpu.memory_latency_of[RowwiseKind::permute] = microseconds(7);
  const Rowwise sorts{.kind = RowwiseKind::permute, .rows = 65536, .cols = 2048};
  Rowwise groups = sorts;
  groups.kind = RowwiseKind::group_rows;
  CHECK(rowwise_price(groups, p).time == rowwise_price(sorts, p).time);
  p.gpu.memory_efficiency_of[RowwiseKind::group_rows] = 0.8;
  CHECK(rowwise_price(groups, p).time < rowwise_price(sorts, p).time);
}

// torch 2.11 on an H100, us: index_select, scatter_add with the zeros it adds to, and their
// backward passes, gather and index_add (Megatron's permute and unpermute without permute fusion).
TEST_CASE("sorting tokens by torch's own kernels takes what they took on an H100") {
  struct Row {
    std::int64_t tokens, hidden, top_k;
    double select, scatter, gather, add;
  };
  for (const Row& r : {Row{4096, 2048, 8, 73.8, 261.2, 73.9, 559.8},
                       Row{8192, 2048, 8, 164.1, 518.1, 164.1, 1143.8},
                       Row{4096, 4096, 8, 144.8, 517.6, 145.2, 1145.8},
                       Row{4096, 7168, 8, 250.7, 906.8, 250.9, 1882.0},
                       Row{8192, 6144, 2, 137.1, 428.8, 137.5, 906.1}}) {
    CAPTURE(r.tokens);
    CAPTURE(r.hidden);
    const auto both_passes = [&](RowwiseKind kind) {
      const Rowwise work{
          .kind = kind, .rows = r.tokens * r.top_k, .cols = r.hidden, .fused = false};
      return 2e6 * rowwise_price(work, machine("h100-sxm")).time.value();
    };
    // Beside the copies themselves what chooses them takes 0.1 ms.
    const double sorted = both_passes(RowwiseKind::permute);
    CHECK(sorted > r.select + r.gather);
    CHECK(sorted < 1.15 * (r.select + r.gather) + 100);
    CHECK(error_of(both_passes(RowwiseKind::unpermute), r.scatter + r.add) < 0.1);
  }
}

// Transformer Engine's fused loss on a B200: 8 B a logit, forward and backward, at 0.2795 of 8000
// GiB/s and 30 us a pass (SimuMax, b200_bf16_ceperm.json and test_ce_permute_efficiency.py).
// scripts/torch_kernels.py on an H200: milliseconds of torch 2.11.
TEST_CASE("sums of rows by index take a row's time for each row of the longest sum") {
  const HardwareProfile h200 = load_hardware("h200-sxm");
  const auto ms = [&](std::int64_t rows, std::int64_t cols, std::int64_t experts) {
    const Rowwise work{.kind = RowwiseKind::index_put,
                       .rows = rows,
                       .cols = cols,
                       .fused = false,
                       .chain = rows / experts};
    return rowwise_price(work, h200).time.value() * 1e3;
  };
  CHECK(ms(16384, 5760, 32) == doctest::Approx(0.851).epsilon(0.25));
  CHECK(ms(32768, 2880, 32) == doctest::Approx(1.430).epsilon(0.1));
  CHECK(ms(65536, 5760, 32) == doctest::Approx(2.829).epsilon(0.1));
  CHECK(ms(65536, 1024, 8) == doctest::Approx(8.656).epsilon(0.25));
}

TEST_CASE("torch's kernels that memory does not hold up are as quick with less bandwidth") {
  const HardwareProfile h200 = load_hardware("h200-sxm");
  HardwareProfile slow = h200;
  slow.gpu.memory_bandwidth = slow.gpu.memory_bandwidth * 0.7;  // an H100's
  Rowwise work{.kind = RowwiseKind::weigh_rows, .rows = 65536, .cols = 2048, .fused = false};
  CHECK(rowwise_price(work, slow).time.value() == rowwise_price(work, h200).time.value());
  CHECK(rowwise_price(work, h200).time.value() == doctest::Approx(0.42e-3).epsilon(0.05));
  work.kind = RowwiseKind::copy;
  CHECK(rowwise_price(work, slow).time > rowwise_price(work, h200).time);
  // AdamW over 1.68e9 parameters in 100 arrays: 9.5 ms in bf16, 14.3 in fp32.
  const auto update = [&](DType of) {
    const Update step{
        .params = 1'677'721'600, .grad = of, .main_params = of, .moments = of, .working = of};
    return price(Work(step), {&h200, nullptr}).time.value();
  };
  CHECK(update(DType::bf16) == doctest::Approx(9.52e-3).epsilon(0.05));
  CHECK(update(DType::fp32) == doctest::Approx(14.34e-3).epsilon(0.2));
}

TEST_CASE("the fused loss takes on Blackwell what Transformer Engine's kernels took") {
  const HardwareProfile b200 = machine("b200");
  const double rows = 4096, cols = 129280;
  double seconds = 0;
  for (const RowwiseKind kind : {RowwiseKind::cross_entropy, RowwiseKind::cross_entropy_backward}) {
    const Rowwise loss{.kind = kind, .rows = 4096, .cols = 129280};
    seconds += price(Work(loss), {&b200, nullptr}).time.value();
  }
  const double measured = 8 * rows * cols / (0.2795 * 8000 * 1024 * 1024 * 1024);
  CHECK(seconds == doctest::Approx(measured).epsilon(0.03));
}

TEST_CASE("the optimizer and the host take their published time") {
  const HardwareProfile& p = machine("h100-sxm");
  const PriceContext context{&p, nullptr};
  CHECK(price(Update{.params = 1'000'000'000}, context).time.value() ==
        doctest::Approx(30e9 / (0.9 * 3.35e12)).epsilon(0.01));
  CHECK(price(HostCopy{.bytes = Bytes(55.1e9)}, context).time.value() ==
        doctest::Approx(1).epsilon(0.01));
  // 4.4 Gparam/s for a node of 8: each rank's 550 M take a second
  CHECK(price(HostAdam{.params = 550'000'000}, context).time.value() ==
        doctest::Approx(1).epsilon(0.01));
  CHECK(price(HostAdam{.params = 550'000'000, .nvme = true}, context).time.value() > 5);
  CHECK(price(Join{}, context).time == Seconds());
}

TEST_CASE("a step on the host takes the time of its bytes") {
  const HardwareProfile& p = machine("h100-sxm");
  const PriceContext context{&p, nullptr};
  const auto seconds = [&](HostAdam work) {
    work.params = 550'000'000;
    return price(work, context).time.value();
  };
  // Our kernel: a gradient, weight and moments in and out, and 16 bits: 30 bytes a parameter.
  CHECK(memory_traffic(HostAdam{.params = 1}).value() == 30);
  CHECK(seconds({}) == doctest::Approx(1).epsilon(0.01));
  // All of 16 bits, which nobody copies: half of the others' 28.
  using enum DType;
  const HostAdam narrow{.grad = bf16, .main_params = bf16, .moments = bf16, .working = bf16};
  CHECK(seconds(narrow) == doctest::Approx(14. / 30).epsilon(0.01));
  // A pass for each of torch's operations takes 20 words, not 7.
  CHECK(seconds({.working = fp32, .fused = false}) ==
        doctest::Approx(20. / 7 * seconds({.working = fp32})).epsilon(0.01));
  // DeepSpeed multiplies gradients before, and casts weights behind.
  CHECK(seconds({.casts_apart = true, .clipping = 2}) == doctest::Approx(42. / 30).epsilon(0.01));
  // What streams from drives and to them has half the bytes, too.
  HostAdam streamed{.nvme = true};
  HostAdam half = narrow;
  half.nvme = true;
  CHECK(seconds(half) < 0.6 * seconds(streamed));
}

TEST_CASE("Muon takes the time of its products and passes, in proportion to its matrices") {
  for (const std::string& name : hardware_names()) {
    CAPTURE(name);
    const HardwareProfile& p = machine(name);
    const PriceContext context{&p, nullptr};
    for (const auto& [rows, cols] :
         {std::pair{4096, 4096}, {28672, 4096}, {1024, 7168}, {1, 512}}) {
      const Muon one{.rows = rows, .cols = cols, .params = std::int64_t{rows} * cols};
      Seconds products;
      for (const Gemm& g : newton_schulz_products(one)) products += gemm_price(g, p).time * 5;
      const Seconds time = price(one, context).time;
      CHECK(time > products);
      CHECK(time <
            products + memory_traffic(one) / (p.gpu.memory_bandwidth * 0.3) + microseconds(200));
      Muon quarter = one;
      quarter.matrices = 0.25;
      quarter.params /= 4;
      CHECK(price(quarter, context).time.value() ==
            doctest::Approx(time.value() / 4).epsilon(1e-3));
    }
  }
}

TEST_CASE("no work takes no time") {
  const HardwareProfile& p = machine("h100-sxm");
  const PriceContext context{&p, nullptr};
  for (const Work& work :
       {Work(Gemm{}), Work(GroupedGemm{}), Work(Attention{}), Work(Rowwise{}), Work(Update{}),
        Work(Muon{}), Work(HostCopy{.bytes = Bytes()}), Work(HostAdam{})}) {
    CHECK(price(work, context).time == Seconds());
  }
}

TEST_CASE("every price of every machine is positive, finite and states a sane error") {
  std::mt19937 random(3);
  const auto size = [&](int low, int high) {
    return std::int64_t{1} << std::uniform_int_distribution<int>(low, high)(random);
  };
  for (const std::string& name : hardware_names()) {
    CAPTURE(name);
    const HardwareProfile& p = machine(name);
    for (int i = 0; i < 40; ++i) {
      const DType dtype = i % 2 == 0 ? DType::bf16 : DType::fp8;
      for (const Work& work :
           {Work(Gemm{.m = size(0, 20), .n = size(0, 18), .k = size(0, 18), .dtype = dtype}),
            Work(Gemm{.m = 8, .n = 8, .k = size(0, 18), .dtype = DType::fp32}),
            Work(GroupedGemm{.groups = size(0, 7),
            .rows = size(0, 18),
            .n = size(5, 14),
            .k = size(5, 14),
            .dtype = dtype,
            .weight_gradient = i % 3 == 0}),
            Work(Attention{.batch = 1,
            .heads = size(0, 6),
            .kv_heads = 1,
            .q_len = size(0, 17),
            .kv_len = size(0, 17),
            .head_dim = size(4, 9),
            .causal = i % 4 != 0}),
            Work(Rowwise{.kind = static_cast<RowwiseKind>(i % 26),
            .rows = size(0, 20),
            .cols = size(0, 17)})}) {
        CAPTURE(to_string(work));
        const Price got = price(work, {&p, nullptr});
        CHECK(std::isfinite(got.time.value()));
        CHECK(got.time.value() > 0);
        CHECK(got.error >= 0.03);
        CHECK(got.error <= 0.5);
        CHECK(flops(work) / got.time <= 1.2 * p.gpu.matmul.rbegin()->second);
      }
    }
  }
}
