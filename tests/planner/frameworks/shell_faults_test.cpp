// Shell scripts that are not what was meant: blocks, tests, assignments and arrays.

#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/planner/frameworks/fixed.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kTrain =
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 36 --micro-batch-size 1";

Checked ask_script(const std::string& text) {
  return ask_text("train.sh", text, "qwen3-8b", 8);
}

// Beside what else is corrected of these arguments.
std::string mended(const std::string& text) {
  return fixed_text("train.sh", text, "qwen3-8b", 8);
}

const std::string* value_of(const Checked& checked, const std::string& rule) {
  const Finding* const found = find(checked, rule);
  return found == nullptr ? nullptr : &found->message;
}

}  // namespace

TEST_SUITE("slips of a shell") {
  TEST_CASE("blocks that are not whole are told where they begin") {
    for (const auto& [text, rule, line] : std::vector<std::tuple<std::string, std::string, int>>{
             {"A=1\nif [ -n \"$X\" ]; then\n  A=2\n" + kTrain + "\n", "unclosed_block", 2},
             {"for i in 1 2; do\n  echo $i\n" + kTrain + "\n", "unclosed_block", 1},
             {"case $X in\n  a) A=1 ;;\n" + kTrain + "\n", "unclosed_block", 1},
             {"go() {\n  A=1\n" + kTrain + "\n", "unclosed_block", 1},
             {"if [ -n \"$X\" ]; then\n  for i in 1 2; do\n    A=1\nfi\n" + kTrain + "\n",
              "unclosed_block", 2},
             {"if [ -n \"$X\" ]\n  A=2\nfi\n" + kTrain + "\n", "missing_word", 1},
             {"A=1\nfi\n" + kTrain + "\n", "stray_block_word", 2},
             {"A=1\ndone\n" + kTrain + "\n", "stray_block_word", 2}}) {
      CAPTURE(text);
      const Checked checked = ask_script(text);
      REQUIRE(find(checked, rule) != nullptr);
      CHECK(find(checked, rule)->place.line == line);
    }
  }

  TEST_CASE("whole blocks are none of these, however they are written") {
    for (const std::string& text : std::vector<std::string>{
             "if true; then A=1; elif false; then A=2; else A=3; fi\n",
             "for ((i = 0; i < 3; ++i)); do\n  echo $i\ndone\n",
             "for case in a b; do echo $case; done\n",
             "if [ \"$A\" = 1 ]\nthen\n  for x in $(ls); do\n    echo $x\n  done\nfi\n",
             "if [ \"$A\" = 1 ]; then\n  for x in a; do\n    if true; then :; fi\n  done\nfi\n",
             "while read -r line; do echo \"$line\"; done < <(cat x)\n",
             "exec > >(while read -r l; do echo \"$l\"; done)\n",
             "case \"$1\" in\n  -h|--help)\n    exit 0 ;;\n  *) A=1 ;;\nesac\n",
             "if ! { [ -f a ] || [ -f b ]; }; then exit 1; fi\n",
             "X=$(f \"a) b\" \"$(g \"c)\")\")\nif true; then :; fi\n",
             "cat > x.sh <<'END'\nif [ a ]; then\nEND\n",
             "[[ -z \"$A\" && -n \"$B\" ]] && exit 1\n"}) {
      CAPTURE(text);
      const Checked checked = ask_script(text + kTrain + "\n");
      for (const std::string rule :
           {"unclosed_block", "missing_word", "stray_block_word", "missing_separator",
            "missing_blank", "unclosed_brackets", "dollar_assignment", "first_item"}) {
        CHECK_MESSAGE(find(checked, rule) == nullptr, findings_text(checked));
      }
    }
  }

  TEST_CASE("a separator, blanks of a test and the dollar of an assignment are mended") {
    for (const auto& [wrong, right] : std::vector<std::pair<std::string, std::string>>{
             {"if [ -n \"$X\" ] then\n  A=1\nfi\n", "if [ -n \"$X\" ]; then\n  A=1\nfi\n"},
             {"for i in 1 2 do\n  echo\ndone\n", "for i in 1 2; do\n  echo\ndone\n"},
             {"if [ -n \"$X\"]; then\n  A=1\nfi\n", "if [ -n \"$X\" ]; then\n  A=1\nfi\n"},
             {"if [-n \"$X\" ]; then\n  A=1\nfi\n", "if [ -n \"$X\" ]; then\n  A=1\nfi\n"},
             {"if [[ -n \"$X\"]]; then\n  A=1\nfi\n", "if [[ -n \"$X\" ]]; then\n  A=1\nfi\n"},
             {"$TP=2\n", "TP=2\n"}}) {
      CAPTURE(wrong);
      CHECK(mended(wrong + kTrain + "\n").starts_with(right));
    }
    // Judged as it was meant.
    const Checked checked = ask_script("$TP=3\n" + kTrain + " --tensor-model-parallel-size $TP\n");
    CHECK(find(checked, "dollar_assignment") != nullptr);
    CHECK(find(checked, "attention_heads") != nullptr);
  }

  TEST_CASE("an array of arguments without [@] is its first item, and all of it is meant") {
    const std::string array = "ARGS=(\n  --hidden-size 4096\n  --bf16\n)\n";
    for (const std::string use : {"$ARGS", "${ARGS}"}) {
      CAPTURE(use);
      const std::string wrong = array + kTrain + " " + use + "\n";
      const Checked checked = ask_script(wrong);
      REQUIRE(find(checked, "first_item") != nullptr);
      CHECK(find(checked, "first_item")->place.line == 5);
      CHECK(find(checked, "bad_value") == nullptr);
      CHECK(mended(wrong).starts_with(array));
      CHECK(mended(wrong).ends_with(" ${ARGS[@]}\n"));
    }
    CHECK(find(ask_script(array + "[ -n \"$ARGS\" ] && echo $ARGS\n" + kTrain + " ${ARGS[@]}\n"),
               "first_item") == nullptr);
    const std::string nodes = "NODES=(a b)\nsrun -w $NODES hostname\n";
    CHECK(find(ask_script(nodes + kTrain + "\n"), "first_item") == nullptr);
  }

  TEST_CASE("lines that are glued by a backslash without a blank are apart") {
    const std::string wrong = kTrain + " \\\n--hidden-size 4096\\\n--bf16\n";
    const Checked checked = ask_script(wrong);
    REQUIRE(find(checked, "glued_lines") != nullptr);
    CHECK(find(checked, "glued_lines")->place.line == 2);
    CHECK(find(checked, "bad_value") == nullptr);
    CHECK(mended(wrong).ends_with(" \\\n--hidden-size 4096 \\\n--bf16\n"));
    // Blanks at the begin of the next line are enough, and a path may be cut.
    for (const std::string end : {"\\\n  --bf16\n", " --load /a/b\\\n/c\n"}) {
      CHECK(find(ask_script(kTrain + " --hidden-size 4096" + end), "glued_lines") == nullptr);
    }
  }

  TEST_CASE(
      "brackets of an expansion that nothing closes are told, and what stands below is read") {
    const Checked checked = ask_script("N=$((8 * 2)\n" + kTrain + " --hiden-size 4096\n");
    REQUIRE(find(checked, "unclosed_brackets") != nullptr);
    CHECK(find(checked, "unclosed_brackets")->place.line == 1);
    CHECK(find(checked, "unknown_option") != nullptr);
    CHECK(find(ask_script("N=$((8 * 2))\nM=$(echo \"(\")\n" + kTrain + "\n"),
               "unclosed_brackets") == nullptr);
  }

  TEST_CASE("values with a comma behind them, and words that are written apart, are mended") {
    CHECK(mended(kTrain + " --hidden-size 4096,\n").find("--hidden-size 4096\n") !=
          std::string::npos);
    const std::string experts = "--num-experts 8 --moe-token-dispatcher-type ";
    CHECK(fixed_text("train.sh", kTrain + " " + experts + "all-to-all\n", "qwen3-30b-a3b", 8)
              .find("--moe-token-dispatcher-type alltoall\n") != std::string::npos);
  }

  TEST_CASE("what a branch only adds to is known without it") {
    const std::string script = "CMD=\"" + kTrain +
                               " --tensor-model-parallel-size 3\"\n"
                               "if [ -n \"$KEY\" ]; then\n  CMD=\"$CMD --seed 1\"\nfi\n$CMD\n";
    const Checked checked = ask_script(script);
    CHECK_MESSAGE(find(checked, "attention_heads") != nullptr, findings_text(checked));
    REQUIRE(value_of(checked, "not_resolved") == nullptr);
    const std::string other = "CMD=\"" + kTrain +
                              " --tensor-model-parallel-size 2\"\n"
                              "if [ -n \"$KEY\" ]; then\n  CMD=\"" +
                              kTrain + " --tensor-model-parallel-size 3\"\nfi\n$CMD\n";
    CHECK(find(ask_script(other), "attention_heads") == nullptr);
  }
}

}  // namespace qplan
