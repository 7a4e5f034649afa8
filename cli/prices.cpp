#include "cli/prices.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "cli/options.h"
#include "costmodel/profiles/other_names.h"
#include "models/csv.h"
#include "models/error.h"

namespace qplan {

std::vector<ListedPrice> read_prices(const std::string& path) {
  const CsvTable table = read_csv_file(path);
  const std::array<std::string_view, 3> needed{"hardware", "usd_per_gpu_hour", "source"};
  std::array<std::size_t, 3> at{};
  for (std::size_t i = 0; i < needed.size(); ++i) {
    const auto found = std::find(table.columns.begin(), table.columns.end(), needed[i]);
    if (found == table.columns.end()) {
      throw Error(
          fmt::format("{} has no column {}; a price list has hardware, usd_per_gpu_hour and "
                      "source",
                      path, needed[i]));
    }
    at[i] = static_cast<std::size_t>(found - table.columns.begin());
  }
  std::vector<ListedPrice> prices;
  for (const CsvTable::Row& row : table.rows) {
    ListedPrice price{row.cells[at[0]], row.cells[at[2]], 0};
    set_number(price.usd, 0.0001, 1e6)(fmt::format("{}:{}: usd_per_gpu_hour", path, row.line),
                                       row.cells[at[1]]);
    if (price.source.empty()) {
      throw Error(fmt::format("{}:{}: the price of {} has no source; say where it is from", path,
                              row.line, price.hardware));
    }
    const auto same = [name = plain_machine_name(price.hardware)](const ListedPrice& p) {
      return plain_machine_name(p.hardware) == name;
    };
    if (std::any_of(prices.begin(), prices.end(), same)) {
      throw Error(fmt::format("{}:{}: {} has a price already; list each machine once", path,
                              row.line, price.hardware));
    }
    prices.push_back(std::move(price));
  }
  if (prices.empty()) throw Error(fmt::format("{} lists no price", path));
  return prices;
}

}  // namespace qplan
