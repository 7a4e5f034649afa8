#pragma once
// Shells among the words of a command: "bash run.sh 4", "srun bash -c '...'", "exec ./run.sh",
// "sbatch --wrap='...'", "ssh host '...'". Private to the readers of scripts and launches.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace qplan {

struct ShellStart {
  enum class Kind : std::uint8_t {
    file,  // a script's name
    text,  // commands in a word
    input  // commands on the standard input: a here-document
  };
  Kind kind = Kind::file;
  std::size_t shell = 0;      // the word that names the shell, or what stands for it
  std::size_t at = 0;         // the word that is read
  std::size_t skip = 0;       // letters of it that come before the commands: "--wrap="
  std::size_t arguments = 0;  // the first word that is $1
};

// Nothing: the command starts no shell.
std::optional<ShellStart> shell_start(const std::vector<std::string>& words);

}  // namespace qplan
