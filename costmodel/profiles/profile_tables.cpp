#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <span>

#include "costmodel/price/step_ratio.h"
#include "costmodel/profiles/profile_parts.h"
#include "models/embedded.h"
#include "models/portable_math.h"

namespace qplan {

// Compiled in from profiles/tables/ (CMakeLists.txt).
extern const EmbeddedFile kernel_table_files[];
extern const std::size_t kernel_table_files_count;

namespace profiles {

namespace {

// An ascending list of positive numbers.
template <class T>
std::vector<T> read_axis(Section& in, std::string_view key) {
  if (in.lacks(key)) return {};
  const Json& list = in.value(key);
  if (!list.is_array() || list.empty()) in.fail(key, "must be a list of numbers");
  std::vector<T> axis;
  for (const Json& value : list) {
    const bool ok = value.is_number() && value.get<double>() > 0 && value.get<double>() <= kHuge &&
                    (axis.empty() || value.get<double>() > static_cast<double>(axis.back()));
    if (!ok) in.fail(key, "must hold positive numbers in ascending order");
    axis.push_back(value.get<T>());
  }
  return axis;
}

void read_gemm_tables(Section& in, std::string_view key, std::vector<GemmTable>& tables) {
  each_object(in, key, [&](Section& item) {
    GemmTable table;
    table.dtype = word<DType>(item, "dtype");
    table.m = read_axis<std::int64_t>(item, "m");
    table.n = read_axis<std::int64_t>(item, "n");
    table.k = read_axis<std::int64_t>(item, "k");
    if (item.lacks("utilisation_permille")) return;
    const Json& values = item.value("utilisation_permille");
    const std::size_t expected = table.m.size() * table.n.size() * table.k.size();
    if (!values.is_array() || values.size() != expected) {
      item.fail("utilisation_permille", fmt::format("must be a list of {} numbers", expected));
    }
    table.utilisation.reserve(expected);
    for (const Json& value : values) {
      if (!value.is_number() || value.get<double>() < 0 || value.get<double>() > 2000) {
        item.fail("utilisation_permille", "must hold numbers from 0 (not measured) to 2000");
      }
      const float permille = value.get<float>();
      table.utilisation.push_back(permille > 0 ? permille / 1000
                                               : std::numeric_limits<float>::quiet_NaN());
    }
    tables.push_back(std::move(table));
  });
}

void read_collective_tables(Section& in, std::string_view key,
                            std::vector<CollectiveTable>& tables) {
  each_object(in, key, [&](Section& item) {
    CollectiveTable table;
    table.kind = word<CollectiveKind>(item, "kind");
    table.ranks = static_cast<int>(item.integer("ranks", 2, 4096));
    for (const double bytes : read_axis<double>(item, "bytes")) table.bytes.emplace_back(bytes);
    if (item.lacks("microseconds")) return;
    const Json& times = item.value("microseconds");
    if (!times.is_array() || times.size() != table.bytes.size()) {
      item.fail("microseconds", "must be a list as long as bytes");
    }
    for (const Json& time : times) {
      const bool ok =
          time.is_number() && time.get<double>() > 0 &&
          (table.times.empty() || microseconds(time.get<double>()) >= table.times.back());
      if (!ok) item.fail("microseconds", "must hold positive numbers that never fall");
      table.times.push_back(microseconds(time.get<double>()));
    }
    tables.push_back(std::move(table));
  });
}

void read_step_ratios(Section& in, std::string_view key, StepRatios& ratios) {
  each_object(in, key, [&](Section& item) {
    const std::string kind = item.string("kind");
    StepRatio measured;
    measured.log_ratio = portable::log(item.number("ratio", 0.01, 100));
    if (item.lacks("sizes")) return;
    const Json& sizes = item.value("sizes");
    if (!sizes.is_array() || sizes.empty()) item.fail("sizes", "must be a list of numbers");
    for (const Json& size : sizes) {
      const bool ok = size.is_number() && size.get<double>() >= 0 && size.get<double>() <= kHuge;
      if (!ok) item.fail("sizes", "must hold numbers that are not negative");
      measured.log2_sizes.push_back(log2_size(size.get<double>()));
    }
    std::vector<StepRatio>& known = ratios[kind];
    if (!known.empty() && known.front().log2_sizes.size() != measured.log2_sizes.size()) {
      item.fail("sizes", fmt::format("must be as many as the first of kind '{}' has", kind));
    }
    known.push_back(std::move(measured));
  });
}

}  // namespace

void read_tables(Section in, HardwareProfile& profile) {
  if (in.has("gemm")) read_gemm_tables(in, "gemm", profile.gemm_tables);
  if (in.has("collectives")) read_collective_tables(in, "collectives", profile.collective_tables);
  if (in.has("steps")) read_step_ratios(in, "steps", profile.step_ratios);
  read_source(in);
  in.finish();
}

namespace {

Json parse_built_in_table(Section& in, std::string_view key) {
  const std::span<const EmbeddedFile> files{kernel_table_files, kernel_table_files_count};
  const std::string name = in.string(key);
  std::vector<std::string> known;
  for (const EmbeddedFile& file : files) {
    if (file.name == name) {
      return parse_json({reinterpret_cast<const char*>(file.bytes), file.size},
                        fmt::format("built-in table {}", name));
    }
    known.emplace_back(file.name);
  }
  std::sort(known.begin(), known.end());
  in.fail(key, fmt::format("names no built-in table: '{}'; choose one of {}{}", shown(name),
                           fmt::join(known, ", "), did_you_mean(name, known)));
}

}  // namespace

void read_built_in_tables(Section& in, HardwareProfile& profile) {
  if (in.has("gemm_table")) {
    const Json json = parse_built_in_table(in, "gemm_table");
    Section table = in.of(json, in.path_of("gemm_table"));
    read_gemm_tables(table, "gemm", profile.gemm_tables);
  }
  if (in.has("collective_table")) {
    const Json json = parse_built_in_table(in, "collective_table");
    Section table = in.of(json, in.path_of("collective_table"));
    read_collective_tables(table, "collectives", profile.collective_tables);
  }
}

}  // namespace profiles
}  // namespace qplan
