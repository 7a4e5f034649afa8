#include "planner/frameworks/shell/shell.h"

#include <doctest/doctest.h>

#include "models/error.h"
#include "planner/frameworks/readers/arguments.h"

namespace qplan {
namespace {

ShellScript read(std::string_view text) {
  return read_shell(text, "train.sh", {});
}

std::vector<std::string> words_of(const ShellCommand& command) {
  std::vector<std::string> words;
  for (const ShellWord& word : command.words) words.push_back(word.text);
  return words;
}

using Words = std::vector<std::string>;

// What `before` makes of X; empty: only a run can tell.
std::string value_of_x(const std::string& before) {
  const auto script = read(before + "\nrun --x \"$X\"\n");
  for (const ShellCommand& command : script.commands) {
    if (command.words.size() < 3 || command.words[0].text != "run") continue;
    return command.words[2].resolved ? command.words[2].text : "";
  }
  return "no command";
}

TEST_SUITE("shell scripts") {
  TEST_CASE("what a script decides itself is followed") {
    struct Idiom {
      std::string before, x;
    };
    const std::vector<Idiom> idioms{
        {": \"${X:=2}\"", "2"},
        {": ${X:=2}", "2"},
        {"X=4; : ${X:=2}", "4"},
        {"Y=${X:=2}", "2"},
        {"case \"8b\" in\n 8b) X=2;;\n *) X=4;;\nesac", "2"},
        {"S=70b\ncase $S in 8b|13b) X=2;; 70b) X=4;; *) X=8;; esac", "4"},
        {"case llama-8b in\n  qwen*) X=2 ;;\n  llama-?b)\n    X=4\n    ;;\n  *) X=8 ;;\nesac", "4"},
        {"case a in b) X=2;; *) X=3;; esac", "3"},
        {"X=1\ncase a in b) X=2;; esac", "1"},
        {"case a in a) if [ 1 = 1 ]; then X=2; else X=3; fi;; *) X=4;; esac", "2"},
        {"declare -A M=([tp]=2 [pp]=4)\nX=${M[pp]}", "4"},
        {"declare -A M\nM[tp]=2\nM[pp]=4\nK=tp\nX=${M[$K]}", "2"},
        {"declare -A M=([\"a b\"]=2)\nX=${M[\"a b\"]}", "2"},
        {"A=(2 4)\nX=${A[0]}", "2"},
        {"A=(2 4)\nX=${A[-1]}", "4"},
        {"A=(2 4)\nI=1\nX=${A[I]}", "4"},
        {"A=(2 4)\nA[1]=8\nX=${A[1]}", "8"},
        {"f() { local a=$1; X=$a; }\nf 2 4", "2"},
        {"f () {\n  X=$2\n}\nf 2 4", "4"},
        {"function f {\n  X=${1:-3}\n}\nf", "3"},
        {"small() { X=2; }\nbig() { X=8; }\nsmall", "2"},
        {"f() { X=$1; }\nf 2\nf 4", "4"},
        {"set -- 2 4\nX=$2", "4"},
        {"let X=1+1", "2"},
        {"let \"X = 2 * 4\"", "8"},
        {"Y=2\n((X = Y * 2))", "4"},
        {"S=llama-8b-tp2\nX=${S##*tp}", "2"},
        {"S=tp2-x-y\nX=${S%%-*}", "tp2"},
        {"S=a/b/c.sh\nX=${S##*/}", "c.sh"},
        {"S=a/b/c.sh\nX=${S%/*}", "a/b"},
        {"S=a.b.c\nX=${S#*.}", "b.c"},
        {"typeset X=2", "2"},
        {"[ -z \"$X\" ] && X=2", "2"},
        {"[[ -z ${X} ]] && X=2", "2"},
        {"if [ -z \"$X\" ]; then X=2; else X=$X; fi", "2"},
        {"X=2\n(X=4; true)", "2"},
        {"X=2\nX=4 run_other", "2"},
        {"X=$(cat <<'END'\na (b) $c\n  'd'\nEND\n)", "a (b) $c\n  'd'"},
        {"Y=2\nX=\"$(cat <<END\n--a $Y\n--b 4\nEND\n)\"", "--a 2\n--b 4"},
        {"X=$(cat <<-END\n\t2\n\tEND\n)", "2"},
        {"read -r -d '' X <<'END'\n\n --a $y\n --b\n\nEND", "--a $y\n --b"},
        {"Y=2\nIFS= read -rd '' X <<END || true\n--a $Y\nEND", "--a 2"},
        {"read X <<END\n2 \n3\nEND", "2"},
        // A backslash joins two lines of a document that the shell expands, or that read reads
        // without -r (bash(1), here documents; read).
        {"read -r -d '' X <<END\n--a \\\n--b\nEND", "--a --b"},
        {"read -d '' X <<'END'\n--a \\\n--b \\\nEND", "--a --b"},
        {"read X <<'END'\n--a \\\n--b\nEND", "--a --b"},
        {"X=$(cat <<END\n--a \\\n--b\nEND\n)", "--a --b"},
        {"X=$(cat <<-END\n\t--a \\\n\t--b\n\tEND\n)", "--a --b"},
        {"read -r -d '' X <<'END'\n--a \\\n--b\nEND", "--a \\\n--b"},
        {"X=$(cat <<'END'\n--a \\\n--b\nEND\n)", "--a \\\n--b"},
        {"X=$(cat <<END\n--a \\\\\n--b\nEND\n)", "--a \\\n--b"},
        // This one hides the delimiter; it stays, to be found.
        {"X=$(cat <<END\n--a \\\nEND\n)", "--a \\"},
        {"X=$'it\\'s'", "it's"},
        {"A=(1 $(seq 8 8 24))\nX=\"${A[*]}\"", "1 8 16 24"},
        {"N=3\nX=$(echo 4; seq 2)\nA=($(seq $N))\nX=${A[-1]}", "3"},
        {"A=($(seq 4 -2 0))\nX=\"${A[*]}\"", "4 2 0"},
        {"A=(1 $(seq 4 3))\nX=\"${A[*]}\"", "1"},
        {"N=4\nX=$(expr 16 / $N)", "4"},
        {"X=`expr 2 \\* 3 + 1`", "7"},
    };
    for (const auto& [before, x] : idioms) {
      CAPTURE(before);
      CHECK(value_of_x(before) == x);
    }
  }

  TEST_CASE("what a script does not decide is never a value") {
    for (const std::string before : {"case $S in 8b) X=2;; *) X=4;; esac",
                                     "case 8b in [0-9]b) X=2;; *) X=4;; esac",
                                     "X=2\nunset X",
                                     "X=1\n((Y > 2)) && X=2",
                                     "if ((Y > 2)); then X=1; else X=2; fi",
                                     "[ -z \"$(hostname)\" ] && X=2",
                                     "read Y\n[ -z \"$Y\" ] && X=2",
                                     "X=1; ((X++))",
                                     "X=1; let X+=1",
                                     "read X <<< \"2\"",
                                     "X=$(cat <<END | tr a b\na\nEND\n)",
                                     "read X Y <<END\n2 4\nEND",
                                     "read -r -d '' X < file",
                                     "A=(2 4)\nX=${A[7]}",
                                     "A=($(ls))\nX=${A[0]}",
                                     "X=$(seq 1 0)$(seq 0.5 2)",
                                     "X=$(seq 1 0 4)",
                                     "X=$(seq $N)",
                                     "X=$(seq 4 | tail -1)",
                                     "X=$(expr 16/2; ls)",
                                     "X=$(expr 4 / 0)",
                                     "X=`expr length abc`",
                                     "declare -A M=([a]=2)\nX=${M[b]}",
                                     "S=a2\nX=${S/a/}",
                                     "S=$(hostname)\nX=${S##*-}",
                                     "X=2\nfor i in 1 2; do X=$i; done",
                                     "while getopts x: o; do case $o in x) X=$OPTARG;; esac; done",
                                     "f() { X=$1; }\n[ -n \"$A\" ] && f 2",
                                     "X=${Y:?}",
                                     "X=${Y:+4}",
                                     "A=(2)\nX=${#A[@]}",
                                     "X=$((Y = 2))",
                                     "M[$K]=2\nX=${M[a]}"}) {
      CAPTURE(before);
      CHECK(value_of_x(before).empty());
    }
  }

  TEST_CASE("a function that nothing seen calls is read all the same") {
    const auto script = read("train() {\n  torchrun x.py --a 1\n}\n\"$@\"\n");
    REQUIRE_FALSE(script.commands.empty());
    CHECK(words_of(script.commands.back()) == Words{"torchrun", "x.py", "--a", "1"});
    CHECK(script.commands.back().words[0].place.line == 2);
  }

  TEST_CASE("variables, defaults and arithmetic are followed") {
    const auto script = read(
        "NODES=4\nGPUS=${GPUS:-8}\nWORLD=$(($NODES * GPUS))\n"
        "run --nodes $NODES --world ${WORLD} --name \"a $NODES\" 'b $NODES'\n");
    REQUIRE(script.commands.size() == 1);
    CHECK(words_of(script.commands[0]) ==
          Words{"run", "--nodes", "4", "--world", "32", "--name", "a 4", "b $NODES"});
  }

  TEST_CASE("a variable falls apart at its blanks, unless it is quoted") {
    const auto script = read("ARGS=\"--a 1 \\\n  --b 2\"\nrun $ARGS \"$ARGS\"\n");
    CHECK(words_of(script.commands[0]) == Words{"run", "--a", "1", "--b", "2", "--a 1   --b 2"});
    // and each word knows its line
    CHECK(script.commands[0].words[1].place.line == 1);
    CHECK(script.commands[0].words[3].place.line == 2);
  }

  TEST_CASE("arrays keep their items, and remarks in them are none") {
    const auto script =
        read("A=(\n  --x 1\n  # --y 2\n  --z \"3 4\"\n)\nA+=(--w)\nrun \"${A[@]}\"\n");
    CHECK(words_of(script.commands[0]) == Words{"run", "--x", "1", "--z", "3 4", "--w"});
    CHECK(script.commands[0].words[3].place.line == 4);
  }

  TEST_CASE("what only a run can tell is marked, never guessed") {
    const auto script = read("run $1 ${UNSET} $(nproc) `date` fixed\n");
    REQUIRE(script.commands[0].words.size() == 6);
    for (std::size_t i = 1; i < 5; ++i) CHECK_FALSE(script.commands[0].words[i].resolved);
    CHECK(script.commands[0].words[5].resolved);
  }

  TEST_CASE("a value that depends on a branch or a loop is marked") {
    const auto script =
        read("X=1\nif [ \"$1\" = a ]; then\n  X=2\nfi\nfor i in 1 2; do Y=$i; done\nrun $X $Y\n");
    const ShellCommand& command = script.commands.back();
    CHECK(words_of(command)[0] == "run");
    CHECK_FALSE(command.words[1].resolved);
    CHECK_FALSE(command.words[2].resolved);
  }

  TEST_CASE("a backslash before a remark does not continue the line, and is found") {
    const auto script = read("run --a 1 \\  # the first\n  --b 2 \\ # more\n  --c 3\n");
    REQUIRE(script.commands.size() == 1);
    CHECK(words_of(script.commands[0]) == Words{"run", "--a", "1", "--b", "2", "--c", "3"});
    REQUIRE(script.findings.size() == 1);
    CHECK(script.findings[0].rule == "broken_continuation");
    CHECK(script.findings[0].place.line == 1);
    CHECK(script.findings[0].message.find("2") != std::string::npos);
    const std::string fixed = with_edits("run --a 1 \\  # the first\n  --b 2 \\ # more\n  --c 3\n",
                                         "train.sh", script.findings[0].fix);
    CHECK(fixed == "# run: the first\n# --b: more\nrun --a 1 \\\n  --b 2 \\\n  --c 3\n");
    CHECK(read(fixed).findings.empty());
  }

  TEST_CASE("here-documents become files") {
    const auto script = read(
        "STAGE=3\ncat > ds.json <<EOT\n{\"stage\": $STAGE}\nEOT\ncat > x <<'EOT'\n$STAGE\nEOT\n");
    REQUIRE(script.files.size() == 2);
    CHECK(script.files[0].name == "ds.json");
    CHECK(script.files[0].text == "{\"stage\": 3}\n");
    CHECK(script.files[0].place.line == 3);
    CHECK(script.files[1].text == "$STAGE\n");
  }

  TEST_CASE("sourced files are read where they are at hand, and named where not") {
    const FindFile find = [](const std::string& name) -> std::optional<FoundFile> {
      if (name != "$DIR/args.sh") return std::nullopt;
      return FoundFile{"given/args.sh", "ARGS=(--a 1)\n"};
    };
    const auto script =
        read_shell("source \"$DIR/args.sh\"\nsource other.sh\nrun ${ARGS[@]}\n", "train.sh", find);
    CHECK(words_of(script.commands.back()) == Words{"run", "--a", "1"});
    CHECK(script.commands.back().words[1].place.file == "given/args.sh");
    REQUIRE(script.findings.size() == 1);
    CHECK(script.findings[0].rule == "sourced_file_missing");
  }

  TEST_CASE("a condition that the script decides is followed, and no other branch") {
    const auto script = read(
        "KIND=${1:-fp8}\nif [[ \"$KIND\" == bf16 ]]; then\n  A=1\nelif [ $KIND = fp8 ] ; then A=2\n"
        "else\n  A=3\n  run other\nfi\n"
        "if [[ -z \"$KIND\" || $A -gt 1 && $A != 3 ]]; then B=yes; else B=no; fi\n"
        "[ $A -eq 2 ] && C=in || C=out\n! test $A = 2 && D=never\nrun $A $B $C ${D:-unset}\n");
    REQUIRE(script.commands.size() == 1);
    CHECK(words_of(script.commands[0]) == Words{"run", "2", "yes", "in", "unset"});
    for (const ShellWord& word : script.commands[0].words) CHECK(word.resolved);
  }

  TEST_CASE("conditions on what only a run can tell, and in loops, stay open") {
    const auto script = read(
        "A=1\nB=1\nC=1\nD=1\nif [ -f x ]; then A=2; fi\n[ \"$HOST\" = y ] && B=2\n"
        "for i in 1 2; do if [ $C = 1 ]; then C=2; fi; done\n"
        "f() {\n  if [ $D = 2 ]; then run inner; fi\n}\nD=2\nf\nrun $A $B $C\n");
    const ShellCommand& command = script.commands.back();
    REQUIRE(command.words.size() == 4);
    for (std::size_t i = 1; i < 4; ++i) CHECK_FALSE(command.words[i].resolved);
    // a function runs where it is called
    CHECK(words_of(script.commands.front()) == Words{"run", "inner"});
  }

  TEST_CASE("patterns of a case are no commands") {
    const auto script = read(
        "while [ $# -gt 0 ]; do\n  case $1 in\n    --data)\n      DATA=$2\n      (run inner)\n     "
        " ;;\n"
        "    -h|--help) run help ;;\n  esac\ndone\nrun last\n");
    REQUIRE(script.commands.size() >= 3);
    for (const ShellCommand& command : script.commands) {
      CHECK_FALSE(command.words.front().text.starts_with("-"));
    }
    CHECK(words_of(script.commands.back()) == Words{"run", "last"});
  }

  TEST_CASE("a line of arguments below a command lacks a backslash above it") {
    const std::string text = "ARGS=(--b 2)\nrun --a 1 \\\n  --c 3\n  ${ARGS[@]} \\\n  --d 4\n";
    const auto script = read(text);
    REQUIRE(script.commands.size() == 1);
    CHECK(words_of(script.commands[0]) ==
          Words{"run", "--a", "1", "--c", "3", "--b", "2", "--d", "4"});
    REQUIRE(script.findings.size() == 1);
    CHECK(script.findings[0].rule == "missing_continuation");
    CHECK(script.findings[0].place.line == 3);
    CHECK(read(with_edits(text, "train.sh", script.findings[0].fix)).findings.empty());
    // a list of arguments alone is none of that
    CHECK(read("--a 1\n--b 2\n").findings.empty());
    CHECK(read("run --a 1\n\n--b 2\n").findings.empty());
  }

  TEST_CASE("a remark among a command's lines ends it, and goes above it") {
    const std::string text =
        "  run --a 1 \\\n    # --b 2 \\\n  # and another\n    --c 3 \\\n    --d 4\n";
    const auto script = read(text);
    REQUIRE(script.commands.size() == 1);
    CHECK(words_of(script.commands[0]) == Words{"run", "--a", "1", "--c", "3", "--d", "4"});
    REQUIRE(script.findings.size() == 1);
    CHECK(script.findings[0].message ==
          "a remark stands among the command's lines, and its backslash is part of it, so the "
          "command ends here and the line below, which begins with --c, is a command of its own");
    CHECK(script.findings[0].instead == "put the remark above the command");
    const std::string fixed = with_edits(text, "train.sh", script.findings[0].fix);
    CHECK(fixed == "  # --b 2\n  # and another\n  run --a 1 \\\n    --c 3 \\\n    --d 4\n");
    CHECK(read(fixed).findings.empty());
    const auto behind = read("run --a 1 # one \\\n  --b 2\n");
    REQUIRE(behind.findings.size() == 1);
    CHECK(behind.findings[0].message.starts_with(
        "the backslash at the end of the line is part of the remark, so"));
  }

  TEST_CASE("a quote that is not closed is named where it begins") {
    const auto open = read("run --a 1\nrun --b \"two \\\n  --c 3\nrun --d 4\n");
    REQUIRE(open.findings.size() == 1);
    CHECK(open.findings[0].rule == "unclosed_quote");
    CHECK(open.findings[0].place.line == 2);
    CHECK(open.findings[0].message ==
          "the quote \" that begins here is not closed, and the file "
          "ends in it");
    const auto middle = read("run --b \"two\nrun --c \"3\"\n");
    REQUIRE(middle.findings.size() == 1);
    CHECK(middle.findings[0].place.line == 2);
    CHECK(middle.findings[0].message.find("begins in line 1") != std::string::npos);
    for (const std::string fine : {"bash -c '\n run --a 1\n'\n", "f() {\n run 'a\nb'\n}\nf\nf\n",
                                   "X=$(cat <<'END'\nit's\nEND\n)\n", "cat <<END\nit's\nEND\n",
                                   "run $'it\\'s'\n", "run \"it's\" # it's\n", "run \"a\""}) {
      CAPTURE(fine);
      CHECK(read(fine).findings.empty());
    }
  }

  TEST_CASE("a script that another starts has its arguments and what was exported") {
    const FindFile find = [](const std::string& name) -> std::optional<FoundFile> {
      if (name != "scripts/inner.sh") return std::nullopt;
      return FoundFile{name, "B=9\ntorchrun t.py --x $1 --all \"$@\" --a $A --hidden $H\n"};
    };
    const auto script =
        read_shell("export A=1\nH=2\nB=3\nbash scripts/inner.sh dsw 8\nrun $B\n", "train.sh", find);
    REQUIRE(script.commands.size() == 4);
    CHECK(words_of(script.commands[2]) == Words{"torchrun", "t.py", "--x", "dsw", "--all", "dsw",
                                                "8", "--a", "1", "--hidden", "$H"});
    CHECK(words_of(script.commands[3]) == Words{"run", "3"});
    CHECK(script.started == std::set<std::string>{"scripts/inner.sh"});
  }

  TEST_CASE("commands that a shell is handed in a word are read, with what it is handed besides") {
    const auto last = [](const std::string& text) { return words_of(read(text).commands.back()); };
    const Words run{"torchrun", "t.py", "--tp", "4"};
    for (const std::string text :
         {"bash -c 'torchrun t.py --tp 4'", "srun --mpi=none bash -lc \"torchrun t.py --tp 4\"",
          "export TP=4\nsrun sh -c 'torchrun t.py --tp $TP'",
          "TP=4\nsrun sh -c \"torchrun t.py --tp $TP\"",
          "TP=4\nexport TP\nbash -eo pipefail -c 'torchrun t.py --tp ${TP:-8}'",
          "TP=4 bash -c 'torchrun t.py --tp $TP'",
          "bash -c 'exec torchrun t.py \"$@\"' name --tp 4",
          "bash -c 'torchrun $1 --tp $2' _ t.py 4",
          "srun apptainer exec x.sif bash -c \"cd /w && bash -c 'torchrun t.py \\\n --tp 4'\"",
          "A=(t.py --tp 4)\nssh $host \"cd /w; torchrun ${A[*]}\"",
          "sbatch --wrap=\"torchrun t.py --tp 4\"", "sbatch --wrap 'torchrun t.py --tp 4'",
          "bash <<EOF\ntorchrun t.py --tp 4\nEOF",
          "sbatch -N 4 <<'EOF'\n#SBATCH --nodes=2\ntorchrun t.py --tp 4\nEOF",
          "cat > r.sh <<EOF\nTP=4\ntorchrun t.py --tp \\$TP\nEOF\nsrun bash r.sh"}) {
      CAPTURE(text);
      const auto words = last(text + "\n");
      CHECK((words.front() == "exec" ? Words(words.begin() + 1, words.end()) : words) == run);
    }
    // Of what is not exported the inner shell knows nothing, and it changes nothing outside.
    const auto script =
        read("A=1\nbash -c 'A=2\nB=3\nrun $A $C'\nbash -c 'run ${A:-none}'\nrun $A\n");
    CHECK(words_of(script.commands[1]) == Words{"run", "2", "$C"});
    CHECK_FALSE(script.commands[1].words[2].resolved);
    CHECK(words_of(script.commands[3]) == Words{"run", "none"});
    CHECK(last("A=1\nbash -c 'A=2'\nrun $A\n") == Words{"run", "1"});
    // What only a run can tell stays so, blanks and quotes included.
    const auto unknown = read("export B=$1\nbash -c \"run $(head -n 1 'a b') ${B:-4}\" x y\n");
    CHECK(words_of(unknown.commands[2]) == Words{"run", "$(head -n 1 'a b')", "$1"});
    CHECK_FALSE(unknown.commands[2].words[1].resolved);
    CHECK_FALSE(unknown.commands[2].words[2].resolved);
    // Folders of a program's arguments are no shells.
    CHECK(last("torchrun t.py --save /ckpt/sh --tp 4\n").size() == 6);
    CHECK(read("apt-get install bash curl\n").started.empty());
    // Sentences and lists are no commands.
    CHECK(read("echo bash -c 'run x'\n").commands.size() == 1);
    CHECK(read("bash -c\nbash\nsrun\nsbatch\n").commands.size() == 4);
  }

  TEST_CASE("a backslash may be lost above a remark, too") {
    const std::string text =
        "run --a 1 \\\n  --b 2\n# of what follows\n# and more\n  --c 3 \\\n  --d 4\n";
    const auto script = read(text);
    REQUIRE(script.commands.size() == 1);
    CHECK(words_of(script.commands[0]) ==
          Words{"run", "--a", "1", "--b", "2", "--c", "3", "--d", "4"});
    REQUIRE(script.findings.size() == 1);
    CHECK(script.findings[0].rule == "missing_continuation");
    CHECK(script.findings[0].place.line == 2);
    CHECK(with_edits(text, "train.sh", script.findings[0].fix) ==
          "# of what follows\n# and more\nrun --a 1 \\\n  --b 2 \\\n  --c 3 \\\n  --d 4\n");
    // Other commands below a remark are no arguments.
    CHECK(read("run --a 1\n# next\nrun --b 2\n").commands.size() == 2);
    CHECK(read("run --a 1\n# next\nrun --b 2\n").findings.empty());
    CHECK(read("run --a 1\n\n# next\n--b 2\n").findings.empty());
  }

  TEST_CASE("words of commands within words know where they were written") {
    const std::string text = "srun bash -c 'torchrun t.py \\\n  --tp 4\n  --pp 2'\n";
    const auto script = read(text);
    const ShellCommand& inner = script.commands.back();
    CHECK(words_of(inner) == Words{"torchrun", "t.py", "--tp", "4", "--pp", "2"});
    CHECK(inner.words[2].place.line == 2);
    CHECK(text.substr(inner.words[3].span.begin, 1) == "4");
    REQUIRE(script.findings.size() == 1);
    CHECK(script.findings[0].rule == "missing_continuation");
    const std::string fixed = with_edits(text, "train.sh", script.findings[0].fix);
    CHECK(fixed == "srun bash -c 'torchrun t.py \\\n  --tp 4 \\\n  --pp 2'\n");
    // A sum of one digit is not the letter that stands where it begins.
    const auto sum = read("run $((1 + 2))\n");
    CHECK(sum.commands[0].words[1].text == "3");
    CHECK(sum.commands[0].words[1].span.end == 0);
  }

  TEST_CASE("commands that hand each other on are read to an end") {
    CHECK_NOTHROW(read("A='eval \"$A\"; eval \"$A\"'\neval \"$A\"\n"));
    CHECK_NOTHROW(read("export A='bash -c \"$A\" & bash -c \"$A\"'\nbash -c \"$A\"\n"));
  }

  TEST_CASE("what is evaluated is read a second time") {
    const auto script =
        read("CMD=\"run --freq '([1]*4 + [0])' --a 1\"\neval \"$CMD\"\neval $CMD\n");
    for (const ShellCommand& command : script.commands) {
      CHECK(words_of(command)[0] == "run");
      CHECK(words_of(command).back() == "1");
    }
    CHECK(words_of(script.commands[0]) == Words{"run", "--freq", "([1]*4 + [0])", "--a", "1"});
  }

  TEST_CASE("exports reach the commands below them") {
    const auto script = read("export A=1 B=two\nC=3 run\n");
    const auto& environment = script.commands.back().environment;
    CHECK(environment.at("A") == "1");
    CHECK(environment.at("B") == "two");
    CHECK(environment.at("C") == "3");
  }

  TEST_CASE("a file that sources itself, and quotes without end, are read to their end") {
    const FindFile itself = [](const std::string&) -> std::optional<FoundFile> {
      return FoundFile{"train.sh", "source train.sh\nrun\n"};
    };
    CHECK_FALSE(read_shell("source train.sh\n", "train.sh", itself).commands.empty());
    const FindFile many = [](const std::string&) -> std::optional<FoundFile> {
      std::string text;
      for (int i = 0; i < 50; ++i) text += "source train.sh\nbash train.sh\n";
      return FoundFile{"train.sh", text};
    };
    CHECK(read_shell("bash train.sh\n", "train.sh", many).started.size() == 1);
    for (const std::string text :
         {"\"", "'", "${", "$((", "$(", "`", "A=(", "<<", "\\", "a\\\\\\"}) {
      CAPTURE(text);
      CHECK_NOTHROW(read(text));
    }
    std::string deep;
    for (int i = 0; i < 100000; ++i) deep += "${a:-";
    CHECK_THROWS_AS(read(deep), Error);
    // each variable twice the one before
    std::string bomb = "A0=xxxxxxxxxx\n";
    for (int i = 1; i < 60; ++i) {
      bomb += "A" + std::to_string(i) + "=$A" + std::to_string(i - 1) + "$A" +
              std::to_string(i - 1) + "\n";
    }
    CHECK_THROWS_AS(read(bomb), Error);
  }
}

TEST_SUITE("arguments") {
  TEST_CASE("flags take as many values as their list says") {
    const auto script = read(
        "run --bf16 --seq-length 4096 --recompute-modules moe_act layernorm "
        "--lr=1e-4 --unknown a b --offset -1\n");
    const OptionList* const list = &known_options("megatron");
    const Settings s = read_arguments(script.commands[0].words, std::span(&list, 1));
    CHECK(s.find("--bf16")->value == true);
    CHECK(text_of(s.find("--seq-length")->value) == "4096");
    CHECK(text_of(s.find("--recompute-modules")->value) == "moe_act layernorm");
    CHECK(text_of(s.find("--lr")->value) == "1e-4");
    CHECK(text_of(s.find("--unknown")->value) == "a b");
    CHECK(text_of(s.find("--offset")->value) == "-1");
  }
}

}  // namespace
}  // namespace qplan
