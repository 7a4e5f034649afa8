#pragma once
// What a rule or a finding may cite: something that a reader can open, or our own words.

#include <regex>
#include <string>
#include <string_view>

namespace qplan {

// "Megatron-LM d98e8a64, a/file.py:12, b/file.py (words); arithmetic: words".
inline bool is_source(const std::string& source) {
  static const std::regex repository(
      "(accelerate|axolotl|DeepEP|DeepSpeed|DualPipe|LLaMA-Factory|Megatron-Bridge|Megatron-"
      "DeepSpeed|"
      "Megatron-LM|ms-swift|nanotron|NeMo-AutoModel|NeMo-RL|PEFT|peft|PyTorch|Python|Ray|slime|"
      "OpenRLHF|prime-rl|torchtitan|torchtune|TransformerEngine|transformers|TRL|verl|"
      "zero-bubble) "
      "(v?[0-9]+(\\.[0-9]+)*|[0-9a-f]{7,10}), "
      "(--[a-z0-9-]+|[A-Za-z0-9_/.-]+\\.(py|md|sh)(:[0-9]+)?)"
      "(, (--[a-z0-9-]+|[A-Za-z0-9_/.-]+\\.(py|md|sh)(:[0-9]+)?))*"
      "( \\([^;]+\\))?");
  // A manual's page: "bash(1), quoting".
  static const std::regex own(
      "(arithmetic|launcher|PyPI|qplan): [^;]{3,}|[a-z]+\\([1-8]\\), [a-z ]+");
  std::string_view rest = source;
  for (;;) {
    const std::size_t end = rest.find("; ");
    const std::string part(rest.substr(0, end));
    if (!std::regex_match(part, repository) && !std::regex_match(part, own)) return false;
    if (end == std::string_view::npos) return true;
    rest.remove_prefix(end + 2);
  }
}

}  // namespace qplan
