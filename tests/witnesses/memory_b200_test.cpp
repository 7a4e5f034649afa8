// Peak allocated memory (and step time) of layer-reduced models on 8 B200, measured by SimuMax
// (tests/data/NOTICE.md).
#include <algorithm>
#include <fstream>
#include <sstream>

#include "tests/witnesses/witness.h"

using namespace qplan;

namespace {

constexpr int kMonth = 202601;  // Transformer Engine 2.11

struct Row {
  std::string name, model;
  int layers = 0, heads = 0, kv_heads = 0;
  ParallelPlan plan;
  double seconds = 0, gib = 0;
};

std::vector<Row> rows() {
  std::ifstream file(QPLAN_TEST_DATA "/simumax_b200.csv");
  REQUIRE(file.good());
  std::string line;
  std::getline(file, line);  // the header
  std::vector<Row> result;
  while (std::getline(file, line)) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream cells(line);
    Row r;
    ParallelPlan& p = r.plan;
    cells >> r.name >> r.model >> r.layers >> r.heads >> r.kv_heads >> p.seq_len >> p.tp >> p.pp >>
        p.cp >> p.ep >> p.dp >> p.micro_batch_size >> p.global_batch_size >> r.seconds >> r.gib;
    REQUIRE(cells);
    p.zero = 1;
    p.loss = LossKind::te;  // "_cef" in SimuMax's names (its docs/strategy.md)
    p.sequence_parallel = p.tp > 1;
    result.push_back(r);
  }
  return result;
}

// The zoo's model with the layers that SimuMax kept: DeepSeek's first is dense.
ModelSpec reduced(const Row& row) {
  ModelSpec m = load_model(row.model == "llama3.1-405b" ? "llama3-405b" : row.model);
  // SimuMax's dense 405B has 16 key-value heads, Meta's 8.
  if (!m.mla) m.num_key_value_heads = row.kv_heads;
  const auto dense =
      std::count_if(m.layers.begin(), m.layers.end(), [](const LayerKind& l) { return !l.moe; });
  m.num_layers = row.layers;
  m.layers.resize(static_cast<std::size_t>(row.layers));
  if (m.moe) {
    for (std::size_t i = 0; i < m.layers.size(); ++i)
      m.layers[i].moe = i >= std::min<std::size_t>(static_cast<std::size_t>(dense), 1);
  }
  m.num_mtp_layers = 0;
  return m;
}

double mean_memory_error(bool experts) {
  double sum = 0;
  int count = 0;
  std::vector<std::string> seen;  // memory does not depend on the number of microbatches
  for (const Row& row : rows()) {
    const WitnessJob job(reduced(row), "b200-half-rate", RecipeKind::megatron, kMonth);
    if (job.model.moe.has_value() != experts) continue;
    ParallelPlan plan = row.plan;
    plan.global_batch_size = 1;
    const std::string key = row.model + to_string(plan);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
    seen.push_back(key);
    Bytes peak;
    for (const StageMemory& s : job.cost.memory(row.plan).stages) peak = std::max(peak, s.peak);
    sum += std::abs(witness("B200 allocated " + row.name, row.gib, in_gib(peak), "GiB"));
    ++count;
  }
  REQUIRE(count > 0);
  return sum / count;
}

double mean_time_error(bool experts, double* worst) {
  double sum = 0;
  int count = 0;
  *worst = 0;
  for (const Row& row : rows()) {
    const WitnessJob job(reduced(row), "b200-half-rate", RecipeKind::megatron, kMonth);
    if (job.model.moe.has_value() != experts) continue;
    const double error = std::abs(
        witness("B200 step " + row.name, row.seconds, job.cost.step_time(row.plan).value(), "s"));
    *worst = std::max(*worst, error);
    sum += error;
    ++count;
  }
  REQUIRE(count > 0);
  return sum / count;
}

}  // namespace

TEST_CASE("witness: allocated memory of dense models on B200 within 1% on average") {
  CHECK(mean_memory_error(false) < 0.01);
}

TEST_CASE("witness: allocated memory of expert models on B200 within 5% on average") {
  CHECK(mean_memory_error(true) < 0.05);
}

TEST_CASE("witness: step time of dense models on B200 within 15%") {
  double worst = 0;
  CHECK(mean_time_error(false, &worst) < 0.15);
  CHECK(worst < 0.25);
}

TEST_CASE("witness: step time of expert models on B200 within 25%") {
  double worst = 0;
  CHECK(mean_time_error(true, &worst) < 0.25);
}
