// Configurations that are Python: would an interpreter read them, and are the names there that they
// take from torchtitan and Megatron-Bridge?

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <utility>

#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/check_bridge_fields.h"
#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/option_value.h"
#include "planner/frameworks/readers/python_syntax.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"
#include "planner/frameworks/torch/titan_parts.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

using enum Severity;

const PythonText* calls_of(const Scene& scene, const std::string& file) {
  for (const PythonText& text : scene.files.python) {
    const auto here = [&](const auto& all) {
      return !all.empty() && all.front().place.file == file;
    };
    if (here(text.calls)) return &text;
  }
  return nullptr;
}

constexpr std::string_view kTitanSource =
    "qplan: planner/frameworks/options/torchtitan_names.tsv, what torchtitan b5bcd76c defines";
constexpr std::string_view kBridgeSource =
    "qplan: planner/frameworks/options/bridge_recipes.tsv, what Megatron-Bridge 067f987d defines";

const std::vector<std::string>& modules_of_torchtitan() {
  static const auto* const modules = [] {
    auto* all = new std::vector<std::string>;
    for (const std::string& name : known_options("torchtitan_names").names()) {
      const std::string module = name.substr(0, name.find_first_of(":/"));
      if (all->empty() || all->back() != module) all->push_back(module);
    }
    return all;
  }();
  return *modules;
}

// `from torchtitan.config import TrainingConfig`
void check_imports(const std::string& file, const std::vector<PythonImport>& imports,
                   Findings& out) {
  for (const PythonImport& import : imports) {
    if (!import.module.starts_with("torchtitan")) continue;
    const auto names = titan_names_under(import.module + ":");
    // Not all of its modules are listed: a slip is told from another one by its neighbour.
    if (names.empty()) {
      const std::string near = nearest_name(import.module, modules_of_torchtitan());
      const bool slip =
          !near.empty() && near != import.module &&
          std::abs(static_cast<int>(near.size()) - static_cast<int>(import.module.size())) <= 1 &&
          std::count(near.begin(), near.end(), '.') ==
              std::count(import.module.begin(), import.module.end(), '.');
      if (!slip) continue;
      out.push_back({error,
                     "unknown_import",
                     {file, import.line},
                     fmt::format("torchtitan has no module {}", shown(import.module)),
                     fmt::format("did you mean {}?", near),
                     std::string(kTitanSource),
                     {}});
      continue;
    }
    for (const std::string& name : import.names) {
      if (name == "*" || name.starts_with("_") ||
          std::find(names.begin(), names.end(), name) != names.end()) {
        continue;
      }
      out.push_back({error,
                     "unknown_import",
                     {file, import.line},
                     fmt::format("{} has no {}", import.module, shown(name)),
                     nearest_text(name, names),
                     std::string(kTitanSource),
                     {}});
    }
  }
}

// The module of torchtitan's that a file in its folder takes model_registry from ("from . import"):
// the one of that folder, or the only one that has what else is imported beside it; empty: another.
std::string module_of_folder(const std::string& file, const std::vector<PythonImport>& imports) {
  constexpr std::string_view kModels = "torchtitan.models.";
  const auto known = [](const std::string& module) {
    return !titan_names_under(module + "/").empty();
  };
  const std::size_t end = file.rfind('/');
  if (end != std::string::npos && end > 0) {
    const std::size_t begin = file.rfind('/', end - 1) + 1;  // npos + 1: the first
    const std::string module = std::string(kModels) + file.substr(begin, end - begin);
    if (known(module)) return module;
  }
  std::set<std::string> found;
  for (const PythonImport& import : imports) {
    if (!import.module.starts_with('.')) continue;
    for (const std::string& name : import.names) {
      for (const std::string& listed : known_options("torchtitan_names").names()) {
        const std::size_t colon = listed.find(':');
        if (!listed.starts_with(kModels) || !name.ends_with("Model") ||
            colon == std::string::npos || listed.substr(colon + 1) != name) {
          continue;
        }
        const std::string module = listed.substr(0, listed.find_first_of(".:", kModels.size()));
        if (known(module)) found.insert(module);
      }
    }
  }
  return found.size() == 1 ? *found.begin() : "";
}

// model_registry("8B") of torchtitan.models.qwen3.
void check_flavor(const Scene& scene, const std::string& file, const PythonText& text,
                  const std::vector<PythonImport>& imports, Findings& out) {
  std::string module;
  for (const PythonImport& import : imports) {
    const bool has =
        std::find(import.names.begin(), import.names.end(), "model_registry") != import.names.end();
    if (has) module = import.module;
  }
  // A folder of one's own may have flavors of its own.
  const bool relative = module.starts_with('.');
  if (relative) module = module_of_folder(file, imports);
  const auto flavors = titan_names_under(module + "/");
  if (module.empty() || flavors.empty()) return;
  for (const PythonCall& call : text.calls) {
    if (call.callee != "model_registry" || call.arguments.empty()) continue;
    const PythonArgument& name = call.arguments.front();
    if (!name.name.empty() || !name.resolved || !name.value.is_string()) continue;
    const auto flavor = name.value.get<std::string>();
    if (std::find(flavors.begin(), flavors.end(), flavor) == flavors.end()) {
      const bool slip = std::any_of(flavors.begin(), flavors.end(), [&](const std::string& real) {
        return lower_case(flavor) == lower_case(real);
      });
      if (relative && !slip) continue;
      std::string near = nearest_text(flavor, flavors);
      if (near.empty()) near = fmt::format("one of {}", fmt::join(flavors, ", "));
      out.push_back({error,
                     "unknown_flavor",
                     name.place,
                     fmt::format("{} has no {}", module, shown(flavor)),
                     near,
                     std::string(kTitanSource),
                     {}});
      continue;
    }
    const TorchtitanModel* const wanted = torchtitan_model(scene.question.model.name);
    const bool same =
        wanted == nullptr || (module.ends_with(wanted->module) && flavor == wanted->flavor);
    if (same || relative || !call.judged || scene.question.model_of_files) continue;
    out.push_back(
        {error,
         "other_model",
         name.place,
         fmt::format("{} of {} is trained, not {}", flavor, module, scene.question.model.name),
         fmt::format("model_registry(\"{}\") of torchtitan.models.{}", wanted->flavor,
                     wanted->module),
         std::string(kTitanSource),
         {}});
  }
}

// "qwen3_8b" of "qwen3_8b_pretrain_4gpu_h100_bf16_config".
std::string model_of_recipe(std::string_view recipe) {
  for (const std::string_view stage : {"_pretrain_", "_sft_", "_peft_"}) {
    const std::size_t at = recipe.find(stage);
    if (at != std::string_view::npos) return std::string(recipe.substr(0, at));
  }
  return "";
}

// The recipe that is meant by a name which Megatron-Bridge has not; empty: a later release or a
// module of the user's may have it.
std::string meant_recipe(const std::string& name) {
  const OptionList& recipes = known_options("bridge_recipes");
  if (recipes.find(name + "_config") != nullptr) return name + "_config";
  for (const std::string& real : recipes.names()) {
    if (lower_case(real) == lower_case(name)) return real;
  }
  const std::array<const OptionList*, 1> lists{&recipes};
  return certain_name(name, lists);
}

// A recipe that is imported by its name.
void check_imported_recipe(const PythonCall& call, const std::string& name, Findings& out) {
  const std::string meant = meant_recipe(name);
  if (meant.empty()) return;
  out.push_back({error,
                 "unknown_recipe",
                 call.place,
                 fmt::format("Megatron-Bridge has no recipe {}, and Python stops as it is imported",
                             shown(name)),
                 fmt::format("did you mean {}?", meant),
                 std::string(kBridgeSource),
                 {}});
}

// `from megatron.bridge.recipe.llama import ...`
void check_packages_of_bridge(const std::string& file, const std::vector<PythonImport>& imports,
                              Findings& out) {
  constexpr std::string_view kBridge = "megatron.bridge.";
  const std::vector<std::string> packages{"data",  "diffusion",    "inference", "models",
                                          "peft",  "perf_recipes", "recipes",   "training",
                                          "utils", "package_info"};
  for (const PythonImport& import : imports) {
    if (!import.module.starts_with(kBridge)) continue;
    const std::string rest = import.module.substr(kBridge.size());
    const std::string package = rest.substr(0, rest.find('.'));
    if (std::find(packages.begin(), packages.end(), package) != packages.end()) continue;
    const std::string near = nearest_name(package, packages);
    if (near.empty() || !is_slip(package, near)) continue;
    out.push_back({error,
                   "unknown_import",
                   {file, import.line},
                   fmt::format("Megatron-Bridge has no package {}{}", kBridge, package),
                   fmt::format("did you mean {}{}?", kBridge, near),
                   std::string(kBridgeSource),
                   {}});
  }
}

// Names that the file takes from Megatron-Bridge's recipes.
std::set<std::string> imported_recipes(const std::vector<PythonImport>& imports) {
  std::set<std::string> names;
  for (const PythonImport& import : imports) {
    if (!import.module.starts_with("megatron.bridge.recipes")) continue;
    names.insert(import.names.begin(), import.names.end());
  }
  return names;
}

void check_recipe(const Scene& scene, const PythonText& text,
                  const std::vector<PythonImport>& imports, Findings& out) {
  const OptionList& recipes = known_options("bridge_recipes");
  const std::set<std::string> imported = imported_recipes(imports);
  for (const PythonCall& call : text.calls) {
    const std::string name = call.callee.substr(call.callee.rfind('.') + 1);
    const std::string model = model_of_recipe(name);
    const bool of_recipes =
        call.callee.starts_with("recipes.") || call.callee.find(".recipes.") != std::string::npos;
    if (!of_recipes && imported.contains(call.callee) && recipes.find(name) == nullptr) {
      check_imported_recipe(call, name, out);
      continue;
    }
    if (!of_recipes && (model.empty() || !name.ends_with("_config"))) continue;
    if (recipes.find(name) == nullptr) {
      if (!of_recipes) continue;  // a function of the file's own
      out.push_back({error,
                     "unknown_recipe",
                     call.place,
                     fmt::format("Megatron-Bridge has no recipe {}", shown(name)),
                     nearest_text(name, recipes.names()),
                     std::string(kBridgeSource),
                     {}});
      continue;
    }
    const BridgeRecipe* const known = bridge_recipe(scene.question.model.name);
    // A relative's recipe is given another model by its provider.
    if (known == nullptr || !known->provider.empty() || scene.question.model_of_files) continue;
    const std::string_view wanted = known->function;
    if (model_of_recipe(wanted) == model) continue;
    // Llama 3.1's recipes are of the same shapes as Llama 3's.
    const auto family = [](std::string word) {
      const std::size_t at = word.find("llama31");
      return at == std::string::npos ? word : word.replace(at, 7, "llama3");
    };
    if (family(model) == family(model_of_recipe(wanted))) continue;
    out.push_back({error,
                   "other_model",
                   call.place,
                   fmt::format("{} trains another model than {}", name, scene.question.model.name),
                   fmt::format("recipes.{}()", wanted),
                   std::string(kBridgeSource),
                   {}});
  }
}

// What a program calls by a slip of a name that it imports.
void check_slips_of_names(const ConfigText& file, Findings& out) {
  std::vector<std::string> imported;
  for (const PythonImport& import : python_imports(file.text)) {
    imported.insert(imported.end(), import.names.begin(), import.names.end());
  }
  for (const PythonName& call : undefined_calls(file.text)) {
    constexpr std::size_t kShortest = 6;
    if (call.name.size() < kShortest) continue;
    for (const std::string& name : imported) {
      if (!is_slip(call.name, name) && lower_case(call.name) != lower_case(name)) continue;
      out.push_back({error,
                     "undefined_name",
                     {file.name, call.line},
                     fmt::format("{} is called and nothing here defines or imports it", call.name),
                     fmt::format("did you mean {}, which is imported?", name),
                     "Python 3, Lib/ast.py",
                     {}});
      break;
    }
  }
}

}  // namespace

void check_python(const Scene& scene, Findings& out) {
  for (const ConfigText& file : scene.files.texts) {
    if (file_kind_of(file) != FileKind::python) continue;
    if (const auto slip = python_slip(file.text)) {
      out.push_back({error,
                     "python_syntax",
                     {file.name, slip->line},
                     fmt::format("Python does not read this: {}", slip->message),
                     "",
                     "Python 3, Lib/ast.py",
                     {}});
      continue;
    }
    const bool titan = file.text.find("torchtitan") != std::string::npos;
    const bool bridge = file.text.find("megatron.bridge") != std::string::npos;
    // A configuration is run whole; what a program of one's own never reaches may lack a name.
    if (!titan && !bridge) {
      check_slips_of_names(file, out);
      continue;
    }
    for (const PythonName& call : undefined_calls(file.text)) {
      out.push_back({error,
                     "undefined_name",
                     {file.name, call.line},
                     fmt::format("{} is called and nothing here defines or imports it", call.name),
                     "",
                     "Python 3, Lib/ast.py",
                     {}});
    }
    const auto imports = python_imports(file.text);
    check_imports(file.name, imports, out);
    const PythonText* const text = calls_of(scene, file.name);
    if (text == nullptr) continue;
    check_flavor(scene, file.name, *text, imports, out);
    if (titan && scene.files.find(Dialect::torchtitan) != nullptr) {
      check_titan_parts(file.text, *text, out);
    }
    if (!bridge) continue;
    check_packages_of_bridge(file.name, imports, out);
    check_recipe(scene, *text, imports, out);
    check_fields_of_bridge(*text, out);
  }
  // What a command or a YAML names, which imports nothing.
  PythonText named = scene.files.bridge;
  std::erase_if(named.calls,
                [](const PythonCall& call) { return call.place.file.ends_with(".py"); });
  check_recipe(scene, named, {}, out);
}

}  // namespace qplan
