#pragma once
// Which layer is what, as Megatron's flags have it: null where a flag is left out.

#include "planner/frameworks/option.h"

namespace qplan::megatron {

// --moe-layer-freq.
Json layer_frequency(const Subject& s);
bool same_layers(const Json& a, const Json& b);

// --linear-attention-freq.
Json delta_net_frequency(const Subject& s);
bool same_mixers(const Json& a, const Json& b);

// --position-embedding-type and --no-rope-freq. Latent attention rescales by flags of its own.
bool rotates_by_yarn(const ModelSpec& model);
Json position_word(const Subject& s);
Json rope_frequency(const Subject& s);
bool same_rotation(const Json& a, const Json& b);

// --window-size, "127,0", and --window-attn-skip-freq.
Json window_size(const Subject& s);
bool same_window(const Json& a, const Json& b);
Json window_frequency(const Subject& s);

// --hybrid-layer-pattern: "MEM*EME/*E".
Json hybrid_pattern(const Subject& s);
bool same_pattern(const Json& a, const Json& b);
void set_pattern_stages(Draft& draft, const Json& value);  // "ME|M*E": of the plan

// --cuda-graph-modules.
Json graph_modules(const Subject& s);
void set_graph_modules(Draft& draft, const Json& value);

}  // namespace qplan::megatron
