#pragma once
// What a GPU hour costs, where somebody says: no price is built in.

#include <string>
#include <vector>

namespace qplan {

struct ListedPrice {
  std::string hardware, source;
  double usd = 0;  // a GPU hour
};

// A CSV of "hardware,usd_per_gpu_hour,source": who asks a price says where it is from.
std::vector<ListedPrice> read_prices(const std::string& path);

}  // namespace qplan
