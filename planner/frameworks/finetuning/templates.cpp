#include "planner/frameworks/finetuning/templates.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

#include "models/ascii.h"
#include "planner/frameworks/scene.h"

namespace qplan {
namespace {

// What register_template is given in src/llamafactory/data/template.py of LLaMA-Factory ff6d4d12.
constexpr std::string_view kOfLlamaFactory = R"(
aeva alpaca bailing bailing_v2 breeze chatglm3 chatml chatml_de cohere cpm4 custom dbrx deepseek
deepseek3 deepseekcoder deepseekr1 default dots_ocr empty ernie ernie_nothink ernie_vl exaone
falcon falcon_h1 fewshot gemma gemma2 gemma3 gemma3n gemma4 gemma4n glm4 glm4_5v glm4_7 glm4_moe
glm4v glm_ocr glmz1 gpt_oss granite3 granite3_vision granite4 hunyuan hunyuan_small hy3
hy_dense_1_8b hy_dense_7b index intern2 intern_s1 intern_vl keye_vl kimi_vl lfm2 lfm2_vl llama2
llama2_zh llama3 llama4 llava llava_next llava_next_llama3 llava_next_mistral llava_next_qwen
llava_next_video llava_next_video_mistral llava_next_video_yi llava_next_yi mimo mimo_v2 mimo_vl
minicpm_o minicpm_v minicpm_v_4_6 minimax1 minimax2 ministral ministral3 mistral mistral_small
mllama moonlight moss_vl olmo openchat openchat-3.6 opencoder paligemma paligemma_chat phi phi4
phi4_mini phi_small pixtral qwen qwen2_audio qwen2_omni qwen2_vl qwen3 qwen3_5 qwen3_5_nothink
qwen3_6 qwen3_nothink qwen3_omni qwen3_omni_nothink qwen3_vl qwen3_vl_nothink sailor seed_coder
seed_oss smollm smollm2 solar starchat telechat2 vicuna video_llava xuanyuan yi yi_vl youtu
youtu_vl yuan zephyr
)";

// ChatTemplate in src/axolotl/utils/schemas/enums.py of axolotl 067b021c.
constexpr std::string_view kOfAxolotl = R"(
alpaca aya chatml cohere command_a command_a_rag command_a_tool_use deepseek_v2 deepseek_v3 exaone
exaone4 falcon_h1 gemma gemma3 gemma3n gemma4 gemma4_unified jamba jinja llama3 llama3_2_vision
llama4 llava metharme mistral_v1 mistral_v2v3 mistral_v3_tekken mistral_v7_tekken nemotron_h phi_3
phi_35 pixtral qwen2_vl qwen3 qwen3_5 qwen_25 tokenizer_default
)";

std::string digits_of(std::string_view name) {
  std::string digits;
  std::copy_if(name.begin(), name.end(), std::back_inserter(digits),
               [](char c) { return is_digit(c); });
  return digits;
}

Template template_of(const std::string& name, std::string_view list) {
  std::istringstream words{std::string(list)};
  const std::vector<std::string> known{std::istream_iterator<std::string>(words), {}};
  const auto is = [&](std::string_view real) { return real == name; };
  // A digit is no slip: the next model's.
  const auto near = [&](std::string_view real) {
    return is_slip(name, real) && digits_of(name) == digits_of(real);
  };
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return is_name(c) || c == '-' || c == '.';
  });
  if (!plain || std::any_of(known.begin(), known.end(), is)) return Template::known;
  return std::any_of(known.begin(), known.end(), near) ? Template::slip : Template::unknown;
}

}  // namespace

Template template_of_llama_factory(const std::string& name) {
  return template_of(name, kOfLlamaFactory);
}

Template template_of_axolotl(const std::string& name) {
  if (name.starts_with("tokenizer_default_fallback_")) return Template::known;
  return template_of(name, kOfAxolotl);
}

}  // namespace qplan
