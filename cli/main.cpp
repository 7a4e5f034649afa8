// The thin end: arguments and the terminal in, exit code out.

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "cli/commands.h"

namespace {

// no-color.org: any value of NO_COLOR turns colours off.
bool wants_color() {
  const char* const off = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) == 1 && (off == nullptr || *off == '\0');
}

// 0: no terminal.
int terminal_columns() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::clamp(int{size.ws_col}, 40, 400) : 0;
}

}  // namespace

int main(int argc, char** argv) {
  qplan::Terminal terminal;
  terminal.color = wants_color();
  terminal.progress = isatty(STDERR_FILENO) == 1;
  terminal.page = terminal_columns();
  if (terminal.page > 0) terminal.columns = terminal.page;
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  const int code = qplan::run_cli(args, std::cout, std::cerr, terminal);
  std::cout.flush();
  if (!std::cout) {
    std::fputs("qplan: the output could not be written; is the disk full?\n", stderr);
    return 2;
  }
  // After a device's failure kernels may still wait for ranks that are gone: nothing is torn down.
  if (code == static_cast<int>(qplan::Exit::device)) std::_Exit(code);
  return code;
}
