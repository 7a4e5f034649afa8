#include "planner/frameworks/megatron/bridge_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "models/ascii.h"
#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/bridge_modules.h"

namespace qplan {
namespace {

const KnownOption* known_recipe(const PythonCall& call) {
  return known_bridge_recipe(call.callee);
}

// Sections that a plan's words stand in.
constexpr std::array<std::string_view, 7> kSections{
    "model", "train", "dataset", "ddp", "optimizer", "comm_overlap", "mixed_precision"};

bool is_section(std::string_view field) {
  return std::find(kSections.begin(), kSections.end(), field) != kSections.end();
}

class ProgramReader {
 public:
  explicit ProgramReader(const PythonText& text) : text_(text) {}

  BridgeProgram read() {
    find_holders();
    take_recipe();
    for (const PythonCall& call : text_.calls) {
      if (last_name(call.callee) != "ConfigContainer") continue;
      for (const PythonArgument& section : call.arguments) {
        if (!section.name.empty()) set(section.name, section);
      }
    }
    for (const PythonAssignment& assignment : text_.assignments) {
      set_target(assignment.target, assignment.value);
    }
    for (const PythonCall& call : text_.calls) read_setattr(call);
    return std::move(program_);
  }

 private:
  // "ddp" of "ConfigContainer(ddp=ddp_config)" and "cfg.ddp = ddp_config", by the variable.
  void find_holders() {
    const auto hold = [&](std::string_view section, const PythonArgument& value) {
      if (is_section(section) && made_of(value) != nullptr) holders_.insert(value.text);
    };
    for (const PythonCall& call : text_.calls) {
      if (last_name(call.callee) != "ConfigContainer") continue;
      for (const PythonArgument& section : call.arguments) hold(section.name, section);
    }
    for (const PythonAssignment& assignment : text_.assignments) {
      const std::size_t dot = assignment.target.find('.');
      if (dot != std::string::npos) hold(assignment.target.substr(dot + 1), assignment.value);
    }
  }

  // What a variable was set to; null: the value is none, or it is not seen to be set.
  [[nodiscard]] const PythonArgument* made_of(const PythonArgument& value) const {
    if (value.resolved || !std::all_of(value.text.begin(), value.text.end(), is_name)) {
      return nullptr;
    }
    const auto found =
        std::find_if(text_.assignments.rbegin(), text_.assignments.rend(),
                     [&](const PythonAssignment& a) { return a.target == value.text; });
    return found == text_.assignments.rend() ? nullptr : &found->value;
  }

  void take_recipe() {
    std::vector<const PythonCall*> recipes;
    std::set<std::string> names;
    bool built = false;
    for (const PythonCall& call : text_.calls) {
      built = built || last_name(call.callee) == "ConfigContainer";
      if (!call.judged || known_recipe(call) == nullptr) continue;
      if (names.insert(last_name(call.callee)).second) recipes.push_back(&call);
    }
    if (recipes.empty()) {
      if (!built) {
        open_all("what the configuration holds before more is set here: it comes from elsewhere");
      }
    } else if (recipes.size() > 1) {
      open_all(
          fmt::format("what a recipe sets by itself: {} and {} are called, and only a run can "
                      "tell which counts",
                      last_name(recipes[0]->callee), last_name(recipes[1]->callee)));
    } else if (known_recipe(*recipes.front())->otherwise.empty()) {
      open_all(fmt::format("what {} sets by itself", last_name(recipes.front()->callee)));
    } else {
      start_from(*recipes.front());
    }
  }

  // Its own values, and those that its call says.
  void start_from(const PythonCall& recipe) {
    std::string program = "cfg.";
    for (const char c : known_recipe(recipe)->otherwise) {
      if (c == ' ' && program.ends_with(';')) {
        program.back() = '\n';
        program += "cfg.";
      } else {
        program += c;
      }
    }
    for (PythonAssignment& own : read_python(program, recipe.place.file).assignments) {
      own.value.place = recipe.place;
      own.value.span = own.value.name_span = {};
      program_.fields.push_back({own.target.substr(own.target.find('.') + 1), own.value});
    }
    for (const PythonArgument* const argument : refused_arguments(recipe)) {
      for (const std::string& field : bridge_fields_called(argument->name)) {
        set(field, *argument);
      }
    }
  }

  // "cfg.model.x"; of "m.x", where m is handed over from elsewhere, only a run can tell.
  void set_target(const std::string& target, const PythonArgument& value) {
    const std::size_t dot = target.find('.');
    if (dot == std::string::npos) return;
    if (holders_.contains(target.substr(0, dot))) return;  // read where the section is set
    const std::string field = target.substr(dot + 1);
    const bool of_section = field.find('.') != std::string::npos || is_section(field);
    if (!of_section && !bridge_fields_called(field).empty()) {
      return open(fmt::format("what {} = {} says: {} is not seen to be a part of the configuration",
                              target, value.text, target.substr(0, dot)));
    }
    set(field, value);
  }

  // setattr(cfg.model, "x", 2)
  void read_setattr(const PythonCall& call) {
    if (call.callee != "setattr" || call.arguments.size() != 3) return;
    const PythonArgument &holder = call.arguments[0], &name = call.arguments[1];
    if (!name.resolved || !name.value.is_string()) {
      return open(fmt::format("what setattr() sets of {}", holder.text));
    }
    set_target(holder.text + "." + name.value.get<std::string>(), call.arguments[2]);
  }

  void open_all(std::string what) {
    open(std::move(what));
    program_.open_sections.insert(kSections.begin(), kSections.end());
  }

  void open(std::string what) { program_.open.push_back("nothing of " + std::move(what)); }

  // A section that is set whole has what its class is given, and nothing of before.
  void set(const std::string& field, const PythonArgument& value) {
    const bool section = is_section(field);
    if (section) {
      std::erase_if(program_.fields, [&](const PythonAssignment& known) {
        return known.target.starts_with(field + ".");
      });
    }
    std::erase_if(program_.fields,
                  [&](const PythonAssignment& known) { return known.target == field; });
    program_.fields.push_back({field, value});
    if (!section || field == "mixed_precision") return read_keywords(field, value);
    const PythonArgument* const variable = made_of(value);
    const PythonArgument& maker = variable == nullptr ? value : *variable;
    if (is_known_maker(maker)) {
      program_.open_sections.erase(field);
    } else {
      open(fmt::format("what cfg.{} holds, which {} makes", field, maker.text));
      program_.open_sections.insert(field);
    }
    read_keywords(field, maker);
    for (const PythonAssignment& more : text_.assignments) {
      if (variable == nullptr || !more.target.starts_with(value.text + ".")) continue;
      set(field + more.target.substr(value.text.size()), more.value);
    }
  }

  // A class that is given all it holds. AutoBridge's models, and the optimizers that recipes make,
  // leave the plan as it is.
  [[nodiscard]] bool is_known_maker(const PythonArgument& value) const {
    const PythonCall* const made = call_of(value);
    const std::string maker = made == nullptr ? "" : last_name(made->callee);
    const bool constructor = !maker.empty() && maker[0] >= 'A' && maker[0] <= 'Z';
    return constructor || maker.starts_with("distributed_fused_adam") ||
           value.text.find("AutoBridge") != std::string::npos ||
           (value.resolved && value.value.is_null());
  }

  void read_keywords(const std::string& field, const PythonArgument& value) {
    const PythonCall* const made = call_of(value);
    if (made == nullptr || field.find('.') != std::string::npos) return;
    for (const PythonArgument& keyword : made->arguments) {
      if (!keyword.name.empty()) set(field + "." + keyword.name, keyword);
    }
  }

  [[nodiscard]] const PythonCall* call_of(const PythonArgument& value) const {
    const auto found =
        std::find_if(text_.calls.begin(), text_.calls.end(), [&](const PythonCall& call) {
          return value.span.end > value.span.begin && call.name_span.begin == value.span.begin;
        });
    return found == text_.calls.end() ? nullptr : &*found;
  }

  const PythonText& text_;
  BridgeProgram program_;
  std::set<std::string, std::less<>> holders_;  // variables that are a section
};

}  // namespace

const KnownOption* known_bridge_recipe(std::string_view callee) {
  const std::string name = last_name(std::string(callee));
  const OptionList& performance = known_options("bridge_perf_recipes");
  const KnownOption* const of_recipes = callee.find(kPerfRecipes) == std::string_view::npos
                                            ? known_options("bridge_recipes").find(name)
                                            : nullptr;
  return of_recipes != nullptr ? of_recipes : performance.find(name);
}

BridgeProgram bridge_program(const PythonText& text) {
  return ProgramReader(text).read();
}

std::vector<const PythonArgument*> refused_arguments(const PythonCall& recipe) {
  std::vector<const PythonArgument*> refused;
  const KnownOption* const known = known_recipe(recipe);
  if (known == nullptr) return refused;
  // It hands whatever else it is given to the adapters' class (Megatron-Bridge 067f987d,
  // src/megatron/bridge/recipes/utils/dataset_utils.py:48).
  if (last_name(recipe.callee) == "default_peft_config") return refused;
  for (const PythonArgument& argument : recipe.arguments) {
    const bool takes = std::find(known->choices.begin(), known->choices.end(), argument.name) !=
                       known->choices.end();
    if (!argument.name.empty() && !takes) refused.push_back(&argument);
  }
  return refused;
}

}  // namespace qplan
