#include "cli/accuracy_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "cli/page.h"
#include "models/text.h"

namespace qplan {
namespace {

struct Sheet {
  std::vector<Table::Column> columns;
  std::vector<std::vector<std::string>> rows;

  [[nodiscard]] std::string text() const {
    Table table(columns);
    for (const auto& row : rows) table.row(row);
    return table.text(page().table);
  }

  [[nodiscard]] std::string markdown() const {
    std::string heads, rules, lines;
    for (const Table::Column& c : columns) {
      heads += fmt::format("| {}{} ", c.heading, c.unit.empty() ? "" : ", " + c.unit);
      rules += c.align == Align::left ? "|---" : "|---:";
    }
    for (const auto& row : rows) lines += fmt::format("| {} |\n", fmt::join(row, " | "));
    return fmt::format("{}|\n{}|\n{}", heads, rules, lines);
  }
};

std::string percent_or_dash(const std::optional<double>& share) {
  return share ? fixed(100 * *share, 1) : "-";
}

std::string count(std::size_t n) {
  return fmt::format("{}", n);
}

struct Named {
  std::vector<std::string> names;
  const Figures* figures;
};

// A column of figures.
struct Field {
  Table::Column column;
  std::function<std::string(const Figures&)> cell;
};

std::vector<Field> time_fields() {
  const auto error = [](auto member) {
    return [member](const Figures& f) { return percent_or_dash(f.step_time.*member); };
  };
  return {
      {{"rows", "", Align::right}, [](const Figures& f) { return count(f.rows); }},
      {{"priced", "", Align::right}, [](const Figures& f) { return count(f.priced); }},
      {{"timed", "", Align::right}, [](const Figures& f) { return count(f.step_time.rows); }},
      {{"median", "%", Align::right}, error(&ErrorFigures::median_abs)},
      {{"mean", "%", Align::right}, error(&ErrorFigures::mean_abs)},
      {{"p90", "%", Align::right}, error(&ErrorFigures::p90_abs)},
      {{"worst", "%", Align::right}, error(&ErrorFigures::worst_abs)},
      {{"signed", "%", Align::right}, error(&ErrorFigures::median_signed)},
      {{"covered", "%", Align::right},
       [](const Figures& f) { return percent_or_dash(f.interval.coverage); }},
      {{"half width", "%", Align::right},
       [](const Figures& f) { return percent_or_dash(f.interval.median_half_width); }},
  };
}

std::string called_right(std::size_t right, std::size_t wrong) {
  return right + wrong == 0 ? "-" : fmt::format("{}/{}", right, right + wrong);
}

std::vector<Field> other_fields() {
  const auto memory = [](auto member) {
    return [member](const Figures& f) { return percent_or_dash(f.memory.*member); };
  };
  return {
      {{"memory", "rows", Align::right}, [](const Figures& f) { return count(f.memory.rows); }},
      {{"median", "%", Align::right}, memory(&ErrorFigures::median_abs)},
      {{"p90", "%", Align::right}, memory(&ErrorFigures::p90_abs)},
      {{"signed", "%", Align::right}, memory(&ErrorFigures::median_signed)},
      {{"ranked", "sets", Align::right}, [](const Figures& f) { return count(f.ranking.sets); }},
      {{"tau-b", "", Align::right},
       [](const Figures& f) {
         return f.ranking.kendall_tau ? fixed(*f.ranking.kendall_tau, 3) : "-";
       }},
      {{"top-1 loss", "%", Align::right},
       [](const Figures& f) { return percent_or_dash(f.ranking.top1_regret); }},
      {{"ok called so", "", Align::right},
       [](const Figures& f) {
         return called_right(f.fits.ok_called_feasible, f.fits.ok_called_infeasible);
       }},
      {{"failed called so", "", Align::right},
       [](const Figures& f) {
         return called_right(f.fits.failed_called_infeasible, f.fits.failed_called_feasible);
       }},
  };
}

Sheet sheet_of(const std::vector<std::string>& heads, const std::vector<Named>& lines,
               const std::vector<Field>& fields) {
  Sheet sheet;
  for (const std::string& head : heads) sheet.columns.push_back({head, "", Align::left});
  for (const Field& field : fields) sheet.columns.push_back(field.column);
  for (const Named& line : lines) {
    std::vector<std::string> cells = line.names;
    cells.resize(heads.size());
    for (const Field& field : fields) cells.push_back(field.cell(*line.figures));
    sheet.rows.push_back(std::move(cells));
  }
  return sheet;
}

// Groups, then everything, in three readings.
std::vector<Named> lines_of(const Accuracy& accuracy) {
  std::vector<Named> lines;
  for (const FigureGroup& group : accuracy.groups) lines.push_back({group.names, &group.figures});
  lines.push_back({{"all"}, &accuracy.all});
  if (!accuracy.apart.empty()) lines.push_back({{"all but set aside"}, &accuracy.trusted});
  lines.push_back({{"all, sources alike"}, &accuracy.by_source});
  return lines;
}

std::vector<Named> source_lines(const Accuracy& accuracy) {
  std::vector<Named> lines;
  for (const Leave& leave : accuracy.sources) lines.push_back({{leave.source}, &leave.only});
  return lines;
}

Sheet left_out_sheet(const Accuracy& accuracy) {
  Sheet sheet{{{"without source", "", Align::left},
               {"timed", ""},
               {"median", "%"},
               {"p90", "%"},
               {"signed", "%"}},
              {}};
  for (const Leave& leave : accuracy.sources) {
    const ErrorFigures& f = leave.others.step_time;
    sheet.rows.push_back({leave.source, count(f.rows), percent_or_dash(f.median_abs),
                          percent_or_dash(f.p90_abs), percent_or_dash(f.median_signed)});
  }
  return sheet;
}

Sheet unpriced_sheet(const Accuracy& accuracy) {
  std::vector<std::pair<std::size_t, std::string>> reasons;
  for (const auto& [reason, rows] : accuracy.all.unpriced) reasons.emplace_back(rows, reason);
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  Sheet sheet{{{"rows", ""}, {"not priced because", "", Align::left}}, {}};
  for (const auto& [rows, reason] : reasons) sheet.rows.push_back({count(rows), reason});
  return sheet;
}

Sheet rows_sheet(const std::vector<JudgedRun>& runs) {
  Sheet sheet{{{"run", "", Align::left},
               {"grade", "", Align::left},
               {"measured", "s"},
               {"predicted", "s"},
               {"error", "%"},
               {"memory", "GiB"},
               {"predicted", "GiB"},
               {"error", "%"},
               {"", "", Align::left}},
              {}};
  for (const JudgedRun& judged : runs) {
    const Outcome& o = judged.outcome;
    const auto number = [](const std::optional<double>& v) { return v ? significant(*v, 4) : "-"; };
    const auto error = [](const std::optional<double>& measured,
                          const std::optional<double>& predicted) {
      return measured && predicted ? percent_or_dash(Pair{*measured, *predicted}.error()) : "-";
    };
    std::optional<double> memory, predicted_memory;
    if (o.memory) {
      memory = o.memory->measured;
      predicted_memory = o.memory->predicted;
    }
    std::string remark = judged.run.failed ? "failed" : "";
    if (o.feasible && !*o.feasible) remark += remark.empty() ? "called infeasible" : ", called so";
    if (!o.unpriced.empty()) remark = o.unpriced;
    sheet.rows.push_back({o.id, judged.run.grade, number(o.measured_step_s), number(o.step_s),
                          error(o.measured_step_s, o.step_s), number(memory),
                          number(predicted_memory), error(memory, predicted_memory), remark});
  }
  return sheet;
}

std::string heading(const Accuracy& accuracy, const AccuracyQuestion& question) {
  std::vector<std::string> files;
  for (const std::string& file : question.files) {
    files.push_back(std::filesystem::path(file).filename().string());
  }
  std::string text = fmt::format("{} rows of {}", accuracy.all.rows, fmt::join(files, ", "));
  if (!question.grades.empty()) {
    text += fmt::format("; grades {}", fmt::join(question.grades, ", "));
    if (question.left_out > 0)
      text += fmt::format(", {} rows of others left out", question.left_out);
  }
  return text;
}

std::string apart_sentence(const Accuracy& accuracy) {
  if (accuracy.apart.empty()) return "";
  return fmt::format(
      "Set aside where said so: {} runs. Of ZeRO-0/1 twins, alike in all else, one took over {} "
      "times as long as the other, though both move the same bytes; or a run took over {} times as "
      "long as one with a smaller micro-batch, pipeline bubbles aside; or the middle half of a "
      "run's own steps spans over {} of their median. Something else was in play.\n",
      accuracy.apart.size(), kTwinRatio, kSlowRatio, kUnsteadySpread);
}

std::string unknown_memory_sentence(const Accuracy& accuracy) {
  const ErrorFigures& f = accuracy.unknown_memory;
  if (f.rows == 0) return "";
  return fmt::format(
      "Memory of unknown kind, against reserved: {} rows, median {}%, p90 {}%, signed {}%.\n",
      f.rows, percent_or_dash(f.median_abs), percent_or_dash(f.p90_abs),
      percent_or_dash(f.median_signed));
}

std::string flags_sentence(const Accuracy& accuracy) {
  if (accuracy.unknown_flags.empty()) return "";
  std::vector<std::string> words;
  for (const auto& [flag, rows] : accuracy.unknown_flags) {
    words.push_back(fmt::format("{} ({})", flag, rows));
  }
  return fmt::format("Words of other_flags that nobody has looked at: {}.\n",
                     fmt::join(words, "; "));
}

}  // namespace

std::string accuracy_text(const std::vector<JudgedRun>& runs, const Accuracy& accuracy,
                          const AccuracyQuestion& question) {
  std::string text = wrapped(heading(accuracy, question), page().text, 2);
  text += "\nStep time, predicted/measured - 1, and how often the stated 80% interval holds\n";
  text += sheet_of(question.by, lines_of(accuracy), time_fields()).text();
  text += "\nMemory, ranking, and feasibility\n";
  text += sheet_of(question.by, lines_of(accuracy), other_fields()).text();
  if (accuracy.sources.size() > 1) {
    text += "\nStep time when a source is left out\n" + left_out_sheet(accuracy).text();
  }
  if (!accuracy.all.unpriced.empty()) text += '\n' + unpriced_sheet(accuracy).text();
  text += '\n';
  text += wrapped(apart_sentence(accuracy), page().text);
  text += wrapped(unknown_memory_sentence(accuracy), page().text);
  text += wrapped(flags_sentence(accuracy), page().text);
  if (question.rows) text += '\n' + rows_sheet(runs).text();
  return text;
}

std::string accuracy_markdown(const Accuracy& accuracy, const AccuracyQuestion& question) {
  constexpr std::size_t kColumns = 118;  // of a document's lines
  std::string text = heading(accuracy, question) + ".\n\n";
  text += "Step time, predicted/measured - 1, and how often the stated 80% interval holds:\n\n";
  text += sheet_of(question.by, lines_of(accuracy), time_fields()).markdown();
  text += "\nMemory, ranking, and feasibility:\n\n";
  text += sheet_of(question.by, lines_of(accuracy), other_fields()).markdown();
  if (accuracy.sources.size() > 1) {
    text += "\nBy source:\n\n";
    text += sheet_of({"source"}, source_lines(accuracy), time_fields()).markdown();
    text += "\nStep time when a source is left out:\n\n" + left_out_sheet(accuracy).markdown();
  }
  if (!accuracy.all.unpriced.empty()) text += '\n' + unpriced_sheet(accuracy).markdown();
  for (const std::string& sentence :
       {apart_sentence(accuracy), unknown_memory_sentence(accuracy), flags_sentence(accuracy)}) {
    if (!sentence.empty()) text += '\n' + wrapped(sentence, kColumns);
  }
  return text;
}

}  // namespace qplan
