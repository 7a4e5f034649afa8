#pragma once
// One step over time, as the page of `qplan report` draws it.

#include <cstddef>

#include "models/json.h"
#include "models/program/trace.h"

namespace qplan {

// What is drawn, short: times are whole ticks of a millionth of the step, and each row is one kind
// of event on one lane of one pipeline rank.
//   {"end_s": 1.39, "ranks": 2, "ticks": 1000000, "events": 150, "left_out": [from, to] | null,
//    "rows": [{"rank": 0, "lane": "compute" | "beside", "category": "forward",
//              "begin": [...], "end": [...], "name": ["0F0", ...]}]}
// Of more than `most` events those around the middle are left out.
Json timeline_json(const Trace& trace, std::size_t most);

}  // namespace qplan
