#include "planner/frameworks/torch/torch_calls.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/ascii.h"
#include "models/edit_distance.h"
#include "models/text.h"
#include "planner/frameworks/readers/python_settings.h"
#include "planner/frameworks/readers/python_syntax.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

using enum Severity;

// Keywords of PyTorch 2.11's, and what people write in their place.
struct TorchCallee {
  std::string_view name, keywords;
  std::string_view source;
  std::string_view others = {};  // "cpu_offload:offload_policy"
};

constexpr std::string_view kOfAdam =
    "params lr betas eps weight_decay amsgrad maximize foreach capturable differentiable fused "
    "decoupled_weight_decay";
constexpr std::string_view kOthersOfAdam =
    "learning_rate:lr beta1:betas beta2:betas beta:betas epsilon:eps wd:weight_decay decay:"
    "weight_decay";

constexpr auto kTorchCallees = std::to_array<TorchCallee>({
    {"FullyShardedDataParallel",
     "module process_group sharding_strategy cpu_offload auto_wrap_policy backward_prefetch "
     "mixed_precision ignored_modules param_init_fn device_id sync_module_states forward_prefetch "
     "limit_all_gathers use_orig_params ignored_states device_mesh",
     "torch/distributed/fsdp/fully_sharded_data_parallel.py",
     "device:device_id mp_policy:mixed_precision offload_policy:cpu_offload mesh:device_mesh "
     "reshard_after_forward:sharding_strategy wrap_policy:auto_wrap_policy"},
    {"fully_shard",
     "module mesh reshard_after_forward shard_placement_fn mp_policy offload_policy ignored_params",
     "torch/distributed/fsdp/_fully_shard/_fully_shard.py",
     "mixed_precision:mp_policy mixed_precision_policy:mp_policy cpu_offload:offload_policy "
     "device_mesh:mesh sharding_strategy:reshard_after_forward"},
    {"MixedPrecision",
     "param_dtype reduce_dtype buffer_dtype keep_low_precision_grads cast_forward_inputs "
     "cast_root_forward_inputs _module_classes_to_ignore",
     "torch/distributed/fsdp/api.py", "output_dtype:buffer_dtype"},
    {"MixedPrecisionPolicy", "param_dtype reduce_dtype output_dtype cast_forward_inputs",
     "torch/distributed/fsdp/_fully_shard/_fsdp_api.py", "buffer_dtype:output_dtype"},
    {"CPUOffload", "offload_params", "torch/distributed/fsdp/api.py"},
    {"CPUOffloadPolicy", "pin_memory", "torch/distributed/fsdp/_fully_shard/_fsdp_api.py"},
    {"init_device_mesh", "device_type mesh_shape mesh_dim_names backend_override",
     "torch/distributed/device_mesh.py", "dim_names:mesh_dim_names names:mesh_dim_names"},
    {"AdamW", kOfAdam, "torch/optim/adamw.py", kOthersOfAdam},
    {"Adam", kOfAdam, "torch/optim/adam.py", kOthersOfAdam},
    {"SGD",
     "params lr momentum dampening weight_decay nesterov maximize foreach differentiable fused",
     "torch/optim/sgd.py", "learning_rate:lr wd:weight_decay"},
});

std::vector<std::string> blank_separated(std::string_view text) {
  std::vector<std::string> words;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) words.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

bool has_words(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// ---- whose a name is ----

class TorchNames {
 public:
  explicit TorchNames(const std::string& program)
      : program_(program), imports_(python_imports(program)) {}

  // The function or class of torch's that is called; null: another.
  [[nodiscard]] const TorchCallee* find(const PythonCall& call) const {
    const std::string last = callee_of(call);
    for (const TorchCallee& known : kTorchCallees) {
      if (last == known.name ? is_of_torch(call, known.name) : is_alias(last, known.name)) {
        return &known;
      }
    }
    return nullptr;
  }

 private:
  // "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP".
  [[nodiscard]] bool is_alias(const std::string& name, std::string_view real) const {
    return comes_from_torch(real) && has_words(program_, fmt::format("{} as {}", real, name)) &&
           !defines(name);
  }

  [[nodiscard]] bool is_of_torch(const PythonCall& call, std::string_view name) const {
    if (call.callee.size() == name.size()) return comes_from_torch(name) && !defines(name);
    const std::string owner = call.callee.substr(0, call.callee.size() - name.size() - 1);
    if (owner == "torch" || owner.starts_with("torch.")) return true;
    return owner == "optim" && (has_words(program_, "torch.optim as optim") ||
                                has_words(program_, "from torch import optim"));
  }

  [[nodiscard]] bool comes_from_torch(std::string_view name) const {
    const PythonImport* from = nullptr;
    for (const PythonImport& import : imports_) {
      if (std::find(import.names.begin(), import.names.end(), name) == import.names.end()) continue;
      if (from != nullptr && !is_torchs(*from)) return false;
      from = &import;
    }
    return from != nullptr && is_torchs(*from);
  }

  static bool is_torchs(const PythonImport& import) {
    return import.module == "torch" || import.module.starts_with("torch.");
  }

  [[nodiscard]] bool defines(std::string_view name) const {
    return has_words(program_, fmt::format("class {}", name)) ||
           has_words(program_, fmt::format("def {}(", name));
  }

  const std::string& program_;
  std::vector<PythonImport> imports_;
};

// ---- keywords ----

void check_keywords_of_torch(const PythonCall& call, const TorchCallee& known, Findings& out) {
  const std::vector<std::string> keywords = blank_separated(known.keywords);
  for (const PythonArgument& a : call.arguments) {
    if (a.name.empty() || std::find(keywords.begin(), keywords.end(), a.name) != keywords.end()) {
      continue;
    }
    std::string meant;
    for (const std::string& other : blank_separated(known.others)) {
      const std::size_t colon = other.find(':');
      if (other.substr(0, colon) == a.name) meant = other.substr(colon + 1);
    }
    for (const std::string& keyword : keywords) {
      if (meant.empty() && is_slip(a.name, keyword)) meant = keyword;
    }
    // A later release may have one that is no slip and nobody's word for another.
    if (meant.empty()) continue;
    // Another class's word for it may want another value.
    const bool same = is_slip(a.name, meant) || meant == "lr" || meant == "eps" ||
                      meant == "weight_decay" || meant == "mesh" || meant == "device_mesh" ||
                      meant == "mesh_dim_names" || meant == "auto_wrap_policy" ||
                      meant == "device_id";
    Correction fix;
    if (same && call.find(meant) == nullptr) {
      fix = Correction{{a.place.file, a.name_span.begin, a.name_span.end, meant}};
      fix.renames = true;
    }
    out.push_back({error, "unknown_option", a.place,
                   fmt::format("{} takes no {}, and Python stops", known.name, shown(a.name)),
                   fmt::format("did you mean {}?", meant),
                   fmt::format("PyTorch 2.11, {}", known.source), std::move(fix)});
  }
}

// ---- values ----

struct Typed {
  std::string_view callee, keyword, wanted, instead;
  Severity severity;
  std::string_view what, source;
};

constexpr auto kTyped = std::to_array<Typed>({
    {"FullyShardedDataParallel", "cpu_offload", "CPUOffload",
     "cpu_offload=CPUOffload(offload_params=True)", error, "torch stops",
     "torch/distributed/fsdp/_init_utils.py:643"},
    {"FullyShardedDataParallel", "mixed_precision", "MixedPrecision",
     "mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)", error, "torch stops",
     "torch/distributed/fsdp/_init_utils.py:644"},
    {"FullyShardedDataParallel", "sharding_strategy", "ShardingStrategy",
     "sharding_strategy=ShardingStrategy.FULL_SHARD", error, "torch stops",
     "torch/distributed/fsdp/_init_utils.py"},
    {"MixedPrecisionPolicy", "param_dtype", "torch.dtype", "param_dtype=torch.bfloat16", error,
     "torch stops", "torch/distributed/fsdp/_fully_shard/_fsdp_param.py"},
    {"MixedPrecisionPolicy", "reduce_dtype", "torch.dtype", "reduce_dtype=torch.float32", error,
     "torch stops", "torch/distributed/fsdp/_fully_shard/_fsdp_param.py"},
    {"MixedPrecision", "param_dtype", "torch.dtype", "param_dtype=torch.bfloat16", error,
     "torch stops", "torch/distributed/fsdp/_flat_param.py"},
    {"MixedPrecision", "reduce_dtype", "torch.dtype", "reduce_dtype=torch.float32", error,
     "torch stops", "torch/distributed/fsdp/_flat_param.py"},
    {"fully_shard", "mp_policy", "MixedPrecisionPolicy",
     "mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)", error, "torch stops",
     "torch/distributed/fsdp/_fully_shard/_fsdp_param.py"},
    {"fully_shard", "offload_policy", "OffloadPolicy", "offload_policy=CPUOffloadPolicy()", warning,
     "nothing is offloaded, silently", "torch/distributed/fsdp/_fully_shard/_fsdp_param.py"},
});

void check_types(const PythonCall& call, const TorchCallee& known, Findings& out) {
  for (const Typed& typed : kTyped) {
    if (typed.callee != known.name) continue;
    const PythonArgument* const said = call.find(typed.keyword);
    if (said == nullptr || !said->resolved) continue;
    const bool off = said->value.is_boolean() && !said->value.get<bool>();
    if (said->value.is_null() || (off && typed.keyword != "mp_policy")) continue;
    if (!said->value.is_boolean() && !said->value.is_string() && !said->value.is_number()) continue;
    out.push_back({typed.severity,
                   "refused_value",
                   said->place,
                   fmt::format("{} of {} is {}, and must be a {}: {}", typed.keyword, known.name,
                               shown(said->text), typed.wanted, typed.what),
                   std::string(typed.instead),
                   fmt::format("PyTorch 2.11, {}", typed.source),
                   {}});
  }
}

// ShardingStrategy.FULL_SHARDED
void check_members(const PythonArgument& value, Findings& out) {
  struct Enumeration {
    std::string_view name, members;
  };
  constexpr auto kEnumerations = std::to_array<Enumeration>(
      {{"ShardingStrategy", "FULL_SHARD SHARD_GRAD_OP NO_SHARD HYBRID_SHARD _HYBRID_SHARD_ZERO2"},
       {"BackwardPrefetch", "BACKWARD_PRE BACKWARD_POST"}});
  for (const auto& [name, members] : kEnumerations) {
    const std::string begin = fmt::format("{}.", name);
    const std::size_t at = value.text.find(begin);
    const bool whole = at == 0 || (at != std::string::npos && value.text[at - 1] == '.');
    if (!whole) continue;
    const std::string member = value.text.substr(at + begin.size());
    if (member.empty() || !std::all_of(member.begin(), member.end(), is_name)) continue;
    const std::vector<std::string> all = blank_separated(members);
    if (std::find(all.begin(), all.end(), member) != all.end()) continue;
    const std::string near = nearest_name(member, all);
    out.push_back({error,
                   "refused_value",
                   value.place,
                   fmt::format("{} has no {}, and Python stops", name, shown(member)),
                   near.empty() ? fmt::format("one of {}", fmt::join(all, ", "))
                                : fmt::format("did you mean {}?", near),
                   "PyTorch 2.11, torch/distributed/fsdp/api.py",
                   {}});
  }
}

// ---- meshes ----

const PythonArgument* argument_of(const PythonCall& call, std::string_view name, std::size_t at) {
  if (const PythonArgument* const found = call.find(name)) return found;
  const bool there = at < call.arguments.size() && call.arguments[at].name.empty();
  return there ? &call.arguments[at] : nullptr;
}

// Items of "(2, 4)", "(16,)" or "['dp', 'tp']", as written; empty: it is no list of items without
// brackets of their own.
std::vector<std::string> items_of(std::string_view written) {
  const bool list = (written.starts_with('(') && written.ends_with(')')) ||
                    (written.starts_with('[') && written.ends_with(']'));
  if (!list || written.find_first_of("([{", 1) != std::string_view::npos) return {};
  std::vector<std::string> items(1);
  for (const char c : written.substr(1, written.size() - 2)) {
    if (c == ',') {
      items.emplace_back();
    } else if (c != ' ' && c != '\n' && c != '\t') {
      items.back() += c;
    }
  }
  if (items.back().empty()) items.pop_back();  // "(16,)"
  return items;
}

void check_mesh(const Scene& scene, const PythonCall& call, Findings& out) {
  constexpr std::string_view kMesh = "PyTorch 2.11, torch/distributed/device_mesh.py:435";
  const PythonArgument* const shape = argument_of(call, "mesh_shape", 1);
  const PythonArgument* const names = argument_of(call, "mesh_dim_names", 2);
  if (shape == nullptr) return;
  const std::vector<std::string> sizes = items_of(shape->text);
  const std::size_t named = names == nullptr ? 0 : items_of(names->text).size();
  if (sizes.empty()) return;
  if (named > 0 && named != sizes.size()) {
    out.push_back(
        {error,
         "refused_value",
         names->place,
         fmt::format("a mesh of {} has {} names, and torch stops", shown(shape->text), named),
         sizes.size() == 1 ? std::string("one name, for its one dimension")
                           : fmt::format("{} names, one for each dimension", sizes.size()),
         "PyTorch 2.11, torch/distributed/device_mesh.py (init_device_mesh)",
         {}});
  }
  constexpr std::size_t kDigits = 6;
  std::int64_t product = 1;
  for (const std::string& size : sizes) {
    if (size.empty() || size.size() > kDigits || !std::all_of(size.begin(), size.end(), is_digit)) {
      return;
    }
    product *= std::stoll(size);
    if (product > std::int64_t{1} << 30) return;
  }
  const std::int64_t gpus = scene.question.limits.gpus;
  if (gpus <= 0 || product <= gpus) return;
  out.push_back({error,
                 "mesh_product",
                 shape->place,
                 fmt::format("a mesh of {} has {} ranks, more than the job's {} processes: torch "
                             "stops",
                             shown(shape->text), product, gpus),
                 fmt::format("sizes whose product is {}", gpus),
                 std::string(kMesh),
                 {}});
}

// ---- what is made before what it is made of ----

std::size_t indent_at(const std::string& text, std::size_t at) {
  const std::size_t line = text.rfind('\n', at) + 1;  // npos + 1: the first
  return std::min(text.find_first_not_of(" \t", line), text.size()) - line;
}

// Whether both run one after the other: the later stands in the block of the former, or deeper.
bool run_in_order(const std::string& text, std::size_t former, std::size_t later) {
  const std::size_t indent = indent_at(text, former);
  for (std::size_t line = text.find('\n', former); line < later; line = text.find('\n', line + 1)) {
    const std::size_t begin = std::min(text.find_first_not_of(" \t", line + 1), text.size());
    if (begin >= text.size() || text[begin] == '\n' || text[begin] == '#' || text[begin] == '\r') {
      continue;
    }
    // Brackets that close a call may stand further left than it.
    if (std::string_view(")]}").find(text[begin]) != std::string_view::npos) continue;
    if (begin - line - 1 < indent) return false;
    // A function of its own, below the block, runs another time.
    if (text.compare(begin, 4, "def ") == 0 || text.compare(begin, 6, "class ") == 0) return false;
  }
  return true;
}

// "model" of "model.parameters()", wherever it stands among an optimizer's arguments.
bool takes_parameters_of(const PythonCall& optimizer, const std::string& model) {
  const PythonArgument* const params = argument_of(optimizer, "params", 0);
  if (params == nullptr) return false;
  const std::size_t at = params->text.find(model + ".parameters(");
  return at != std::string::npos &&
         (at == 0 || (!is_name(params->text[at - 1]) && params->text[at - 1] != '.'));
}

void check_order(const std::string& program, const PythonText& text, const TorchNames& names,
                 Findings& out) {
  for (const PythonCall& shards : text.calls) {
    const TorchCallee* const known = names.find(shards);
    const bool second = known != nullptr && known->name == "fully_shard";
    const bool first = known != nullptr && known->name == "FullyShardedDataParallel";
    if (!first && !second) continue;
    const PythonArgument* const module = argument_of(shards, "module", 0);
    if (module == nullptr || module->text.empty() ||
        !std::all_of(module->text.begin(), module->text.end(), is_name)) {
      continue;
    }
    // What keeps the parameters that there were.
    const PythonArgument* const keeps = shards.find("use_orig_params");
    if (first && keeps != nullptr && keeps->text != "False") continue;
    const PythonCall* before = nullptr;
    bool after = false;
    for (const PythonCall& call : text.calls) {
      const TorchCallee* const made = names.find(call);
      const bool optimizer = made != nullptr && made->source.starts_with("torch/optim/");
      if (!optimizer || !takes_parameters_of(call, module->text)) continue;
      (call.name_span.begin < shards.name_span.begin ? void(before = &call) : void(after = true));
    }
    if (before == nullptr || after ||
        !run_in_order(program, before->name_span.begin, shards.name_span.begin)) {
      continue;
    }
    out.push_back({error,
                   "optimizer_before_shards",
                   before->place,
                   fmt::format("the optimizer is made of {}'s parameters before {} puts shards in "
                               "their place: it steps what nobody trains",
                               module->text, callee_of(shards)),
                   "make the optimizer after the model is sharded",
                   second ? "PyTorch 2.11, torch/distributed/fsdp/_fully_shard/_fully_shard.py"
                          : "PyTorch 2.11, torch/distributed/fsdp/fully_sharded_data_parallel.py",
                   {}});
    return;
  }
}

}  // namespace

void check_torch_calls(const Scene& scene, Findings& out) {
  for (const PythonText& text : scene.files.python) {
    if (text.calls.empty()) continue;
    const std::string& program = scene.text_of(text.calls.front().place.file);
    const TorchNames names(program);
    // Of several meshes a run takes the one that fits it.
    const auto meshes =
        std::count_if(text.calls.begin(), text.calls.end(),
                      [](const PythonCall& call) { return callee_of(call) == "init_device_mesh"; });
    for (const PythonCall& call : text.calls) {
      for (const PythonArgument& argument : call.arguments) check_members(argument, out);
      const TorchCallee* const known = names.find(call);
      if (known == nullptr) continue;
      check_keywords_of_torch(call, *known, out);
      check_types(call, *known, out);
      if (known->name == "init_device_mesh" && meshes == 1) check_mesh(scene, call, out);
    }
    for (const PythonAssignment& assignment : text.assignments) {
      check_members(assignment.value, out);
    }
    check_order(program, text, names, out);
  }
}

}  // namespace qplan
