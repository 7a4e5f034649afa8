#pragma once
// Which tiles grouped products have, who takes which, and what a tile contracts: from the groups'
// rows, which are read on the device. Private to grouped_product.cu.

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

constexpr int kTileM = 128, kTileN = 256, kTileK = 64;
// Of a block: a warpgroup brings operands, two multiply.
constexpr int kWarpgroup = 128, kConsumers = 2 * kWarpgroup, kBlock = 3 * kWarpgroup;

enum class Product { forward, input_gradient, weight_gradient };

struct Shape {
  RowGroups groups;
  int n = 0, k = 0;  // of a group: rows x n x k; of weight gradients m x n, over rows
  int m = 0;
  std::int64_t out_stride = 0, group_stride = 0;  // numbers between rows, and between groups
};

// By group, and within it by share of the rows.
struct TileLists {
  int first_row[kMostRowGroups], rows[kMostRowGroups];
  int first_tile[kMostRowGroups + 1];  // ... and the number of all; of weight gradients by group
  int order[kMostRowGroups];           // of weight gradients: groups, those with most rows first
};

[[maybe_unused]] __device__ constexpr int tiles_of(int size, int tile) {
  return (size + tile - 1) / tile;
}

// Of all shares.
[[maybe_unused]] __device__ inline int rows_of(const TileLists& lists, const RowGroups& g,
                                               int group) {
  int rows = 0;
  for (int share = 0; share < g.shares; ++share) rows += lists.rows[group * g.shares + share];
  return rows;
}

// The sum of `mine` over the lanes up to this one. All of the warp call it.
[[maybe_unused]] __device__ inline int sum_to_lane(int mine) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = __shfl_up_sync(0xffffffffU, mine, step);
    if (lane >= step) mine += before;
  }
  return mine;
}

// By one warp, as are the tiles behind it.
[[maybe_unused]] __device__ void find_rows(TileLists& lists, const RowGroups& g) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int share = 0; share < g.shares; ++share) {
    const std::int32_t* counts = g.rows + static_cast<std::int64_t>(share) * g.share_stride;
    int before = share * static_cast<int>(g.share_rows);
    for (int first = 0; first < g.count; first += kWarp) {
      const int group = first + lane;
      int rows = 0;
      for (int source = 0; source < g.sources && group < g.count; ++source) {
        rows += counts[source * g.source_stride + group];
      }
      const int to = sum_to_lane(rows);
      if (group < g.count) {
        lists.first_row[group * g.shares + share] = before + to - rows;
        lists.rows[group * g.shares + share] = rows;
      }
      before += __shfl_sync(0xffffffffU, to, kWarp - 1);
    }
  }
}

// Weight gradients have as many tiles in each group that has rows; of others a group's shares have
// tiles of their own.
template <Product P>
__device__ void find_tiles(TileLists& lists, const Shape& shape) {
  constexpr bool wgrad = P == Product::weight_gradient;
  const RowGroups& g = shape.groups;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int tiles_n = tiles_of(shape.n, kTileN), tiles_m = tiles_of(shape.m, kTileM);
  const int parts = wgrad ? g.count : g.count * g.shares;
  int before = 0;
  for (int first = 0; first < parts; first += kWarp) {
    const int part = first + lane;
    int tiles = 0;
    if (part < parts && wgrad) {
      tiles = rows_of(lists, g, part) > 0 ? tiles_m * tiles_n : 0;
    } else if (part < parts) {
      tiles = tiles_of(lists.rows[part], kTileM) * tiles_n;
    }
    const int to = sum_to_lane(tiles);
    if (part < parts) lists.first_tile[part] = before + to - tiles;
    before += __shfl_sync(0xffffffffU, to, kWarp - 1);
  }
  if (lane == 0) lists.first_tile[parts] = before;
}

// By the whole block. A tile of a weight gradient takes as long as its group has rows: blocks have
// as much to do as each other when they take turns from the longest to the shortest.
[[maybe_unused]] __device__ void order_groups(TileLists& lists, const RowGroups& g) {
  for (int group = static_cast<int>(threadIdx.x); group < g.count; group += kBlock) {
    const int rows = rows_of(lists, g, group);
    int place = 0;
    for (int other = 0; other < g.count; ++other) {
      const int others = rows_of(lists, g, other);
      place += others > rows || (others == rows && other < group) ? 1 : 0;
    }
    lists.order[place] = group;
  }
}

struct Tile {
  int part = 0;      // its group's share of the rows, by group; of weight gradients the group
  int m = 0, n = 0;  // its first row and column: of all rows, or of the group's weight gradient
};

// Tiles go in bands of so many rows of tiles, column by column: those that an H100's or H200's 132
// blocks have at once are 16 x 8, which reads as much of either operand. Row by row they would read
// 132 tiles of one for each of the other, and memory takes power from the products.
constexpr int kBand = 16;

// The index-th of all tiles, of which a block draws rising ones; false: there are no more.
template <Product P>
__device__ bool find_tile(const TileLists& lists, const Shape& shape, int index, Tile& tile) {
  constexpr bool wgrad = P == Product::weight_gradient;
  const RowGroups& g = shape.groups;
  if (index >= lists.first_tile[wgrad ? g.count : g.count * g.shares]) return false;
  const int tiles_n = tiles_of(shape.n, kTileN);
  int tiles_m = tiles_of(shape.m, kTileM), first = 0, within = 0;
  if constexpr (wgrad) {
    tile.part = lists.order[index / (tiles_m * tiles_n)];
    within = index % (tiles_m * tiles_n);
  } else {
    while (lists.first_tile[tile.part + 1] <= index) ++tile.part;
    within = index - lists.first_tile[tile.part];
    tiles_m = tiles_of(lists.rows[tile.part], kTileM);
    first = lists.first_row[tile.part];
  }
  const int band = within / (kBand * tiles_n) * kBand, in_band = within % (kBand * tiles_n);
  const int height = min(kBand, tiles_m - band);
  tile.m = first + (band + in_band % height) * kTileM;
  tile.n = in_band / height * kTileN;
  return true;
}

// What a tile contracts, in as many pieces as a weight gradient's group has shares.
struct Contracted {
  int begin = 0, count = 0;
};
template <Product P>
__device__ constexpr int pieces_of(const Shape& shape) {
  return P == Product::weight_gradient ? shape.groups.shares : 1;
}
template <Product P>
__device__ Contracted contracted(const TileLists& lists, const Shape& shape, const Tile& tile,
                                 int piece) {
  if constexpr (P == Product::weight_gradient) {
    const int part = tile.part * shape.groups.shares + piece;
    return {lists.first_row[part], lists.rows[part]};
  } else {
    return {0, shape.k};
  }
}

}  // namespace
}  // namespace qplan::kernels
