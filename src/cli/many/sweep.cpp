// `dsplan sweep`: one configuration along axes, every combination predicted, in parallel.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>

#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/many/sweep.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/screen/first_screen.h"
#include "cli/screen/table.h"
#include "cli/wrap.h"
#include "core/format.h"
#include "core/machine/in_parallel.h"
#include "core/settings.h"
#include "planner/predict/predict.h"
#include "report/cells.h"

namespace dsplan {
namespace {

constexpr std::size_t kMostPoints = 20'000;

constexpr const char* kSweepFooter =
    "AXIS is an option of simulate without its dashes (micro_batch, seq,\n"
    "checkpoint, optimizer, lora, gpus, ...), or model. Commas separate values;\n"
    "A..B counts from A to B, A..B..S in steps of S, A..B*F multiplies by F.\n"
    "A point that cannot be is a row with its reason.\n"
    "Example: dsplan sweep llama-3-8b --hardware h100-sxm --gpus 8 --zero-stage 3 \\\n"
    "           --vary micro_batch=1..8 --vary checkpoint=none,full\n"
    "Exit codes: 0 done, 2 refused.";

std::string option_of(std::string axis) {
  std::replace(axis.begin(), axis.end(), '_', '-');
  return "--" + axis;
}

// Every axis's name.
std::vector<std::string> axes_there_are() {
  std::vector<std::string> names = {"model"};
  const auto add = [&names](std::string_view option) {
    std::string name(option.substr(2));
    std::replace(name.begin(), name.end(), '-', '_');
    names.push_back(std::move(name));
  };
  for (const SettingRow& row : settings()) {
    if (row.request.option != nullptr && !row.request.stays_behind) add(row.request.option);
  }
  return names;
}

// "1..64", "512..8192..512", "1..64*2"; nullopt: it is no range.
std::optional<std::vector<std::string>> range_in(const std::string& text, Diagnostics& faults) {
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos || dots == 0) return std::nullopt;
  const std::string rest = text.substr(dots + 2);
  const std::size_t star = rest.find('*');
  const std::size_t step = rest.find("..");
  const std::string last = rest.substr(0, std::min(star, step));
  const bool digits = text.substr(0, dots).find_first_not_of("0123456789") == std::string::npos && !last.empty() &&
                      last.find_first_not_of("0123456789") == std::string::npos;
  if (!digits) return std::nullopt;
  const auto from = whole_number("--vary", text.substr(0, dots), faults);
  const auto to = whole_number("--vary", last, faults);
  std::optional<std::int64_t> by = 1;
  if (star != std::string::npos) by = whole_number("--vary", rest.substr(star + 1), faults);
  if (star == std::string::npos && step != std::string::npos)
    by = whole_number("--vary", rest.substr(step + 2), faults);
  std::vector<std::string> values;
  if (!from || !to || !by) return values;
  const bool multiplies = star != std::string::npos;
  if (*by < (multiplies ? 2 : 1) || *from > *to || (multiplies && *from < 1)) {
    faults.add(
        {"--vary", 0, 0, {}, formatted("\"{}\" counts to nowhere", text), "write 1..8, 512..4096..512 or 1..64*2"});
    return values;
  }
  for (std::int64_t value = *from; value <= *to && values.size() <= kMostPoints;
       value = multiplies ? checked_mul(value, *by) : checked_add(value, *by)) {
    values.push_back(std::to_string(value));
  }
  return values;
}

std::optional<SweepAxis> axis_in(const std::string& text, Diagnostics& faults) {
  const auto refuse = [&](std::string message, std::string hint) {
    faults.add({"--vary", 0, 0, {}, std::move(message), std::move(hint)});
  };
  const std::size_t equals = text.find('=');
  std::string key = text.substr(0, equals);
  std::replace(key.begin(), key.end(), '-', '_');
  const std::vector<std::string> names = axes_there_are();
  if (std::find(names.begin(), names.end(), key) == names.end()) {
    refuse(formatted("no axis \"{}\"", key), did_you_mean(key, {names.begin(), names.end()}));
    return std::nullopt;
  }
  SweepAxis axis{key, key == "model" ? key : option_of(key), {}};
  bool ranged = false;
  if (equals != std::string::npos) {
    for (std::size_t at = equals + 1; at <= text.size();) {
      const std::size_t comma = std::min(text.find(',', at), text.size());
      const std::string value = text.substr(at, comma - at);
      if (auto range = range_in(value, faults)) {
        ranged = true;
        axis.values.insert(axis.values.end(), range->begin(), range->end());
      } else if (!value.empty()) {
        axis.values.push_back(value);
      }
      at = comma + 1;
    }
  }
  if (axis.values.empty() && !ranged) refuse(formatted("\"{}\" has no values", text), "write micro_batch=1,2,4");
  return axis;
}

std::vector<SweepAxis> axes_in(const std::vector<std::string>& texts, Diagnostics& faults) {
  std::vector<SweepAxis> axes;
  std::size_t points = 1;
  for (const std::string& text : texts) {
    std::optional<SweepAxis> axis = axis_in(text, faults);
    if (!axis) continue;
    const bool twice =
        std::any_of(axes.begin(), axes.end(), [&](const SweepAxis& one) { return one.name == axis->name; });
    if (twice) faults.add({"--vary", 0, 0, {}, formatted("\"{}\" is varied twice", axis->name), {}});
    points *= std::max<std::size_t>(1, axis->values.size());
    if (points > kMostPoints) {
      faults.add({"--vary", 0, 0, {}, formatted("more than {} points", grouped(kMostPoints)), "vary fewer values"});
      return axes;
    }
    axes.push_back(std::move(*axis));
  }
  if (axes.empty() && !faults.any()) {
    faults.add({"--vary", 0, 0, {}, "is missing", "such as --vary micro_batch=1..8"});
  }
  return axes;
}

// The words of one point: the options that it varies replaced, before any launch line.
Words words_at(const Words& base, const std::string& model, const std::vector<SweepAxis>& axes,
               const std::vector<std::string>& values) {
  Words words = {model};
  Words varied;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].option == "model") {
      words.front() = values[i];
    } else {
      varied.insert(varied.end(), {axes[i].option, values[i]});
    }
  }
  words.insert(words.end(), varied.begin(), varied.end());
  for (std::size_t i = 0; i < base.size(); ++i) {
    if (base[i] == "--") {
      words.insert(words.end(), base.begin() + static_cast<std::ptrdiff_t>(i), base.end());
      break;
    }
    const auto varies = [&](auto&& is) {
      return std::any_of(axes.begin(), axes.end(), [&](const SweepAxis& one) { return is(one.option); });
    };
    if (varies([&](const std::string& option) { return option == base[i]; })) {
      ++i;
    } else if (!varies([&](const std::string& option) { return base[i].starts_with(option + "="); })) {
      words.push_back(base[i]);
    }
  }
  return words;
}

std::string first_reason(const Refusal& refusal) {
  const Diagnostic& first = refusal.diagnostics().front();
  return first.path.starts_with("--") ? formatted("{} {}", first.path, first.message) : first.message;
}

// Axes whose values name files, or change the model: their inputs are read anew.
bool reads_files(const SweepAxis& axis) {
  for (const char* one :
       {"model", "--deepspeed", "--training", "--hardware", "--cluster", "--calibration", "--checkpoint", "--lora",
        "--env", "--quantization", "--double-quant", "--quant-compute-dtype", "--quant-storage", "--kbit-prepare"}) {
    if (axis.option == one) return true;
  }
  return false;
}

// Inputs by the values of such axes, each read once.
class InputsOfPoints {
 public:
  InputsOfPoints(Words base, std::string model, const std::vector<SweepAxis>& axes)
      : base_(std::move(base)), model_(std::move(model)), axes_(axes) {}

  // Throws what is refused.
  [[nodiscard]] Inputs at(const std::vector<std::string>& values) {
    std::string key;
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      if (reads_files(axes_[i])) key += values[i] + "\n";
    }
    const SimulateWords said = parse_simulate("sweep", words_at(base_, model_, axes_, values));
    std::shared_ptr<const Inputs> read;
    {
      const std::lock_guard<std::mutex> lock(guard_);
      read = read_[key];
    }
    if (read == nullptr) {
      read = std::make_shared<const Inputs>(gather(said));
      const std::lock_guard<std::mutex> lock(guard_);
      read_[key] = read;
    }
    Inputs inputs = *read;
    for (const SweepAxis& axis : axes_) {
      if (!reads_files(axis)) lay_option(axis.option, said.options, inputs.request);
    }
    return inputs;
  }

 private:
  static void lay_option(const std::string& option, const Request& said, Request& into) {
    for (const SettingRow& row : settings()) {
      if (row.request.option == nullptr || option != row.request.option) continue;
      const auto from = row.request.field.of(said);
      const auto to = row.request.field.of(into);
      std::visit(
          [&to](const auto* value) {
            using Field = std::remove_const_t<std::remove_pointer_t<decltype(value)>>;
            *std::get<Field*>(to) = *value;
          },
          from);
    }
  }

  Words base_;
  std::string model_;
  const std::vector<SweepAxis>& axes_;
  std::mutex guard_;
  std::map<std::string, std::shared_ptr<const Inputs>> read_;
};

std::vector<SweepPoint> points_of(const std::vector<SweepAxis>& axes) {
  std::vector<SweepPoint> points;
  std::vector<std::size_t> at(axes.size(), 0);
  while (true) {
    SweepPoint point;
    for (std::size_t i = 0; i < axes.size(); ++i) point.values.push_back(axes[i].values[at[i]]);
    points.push_back(std::move(point));
    std::size_t axis = axes.size();
    while (axis > 0 && ++at[axis - 1] == axes[axis - 1].values.size()) at[--axis] = 0;
    if (axis == 0) return points;
  }
}

void predict_point(InputsOfPoints& inputs_of, SweepPoint& point) {
  try {
    const Inputs inputs = inputs_of.at(point.values);
    Job job = resolve(inputs);
    if (job.rank == "all") job.rank = "worst";
    point.prediction = std::move(predict_asked(inputs.model, job).front());
  } catch (const Refusal& refusal) {
    point.reason = first_reason(refusal);
  }
}

}  // namespace

SweepFigures figures_at(const Prediction& p) {
  SweepFigures figures;
  if (p.peak) figures.process = p.peak->process;
  figures.needed = p.needed;
  figures.persistent = p.persistent.by_role.total();
  figures.shortfall = p.shortfall;
  figures.host = p.host.per_node;
  figures.capacity = p.capacity;
  figures.doubt = p.doubt();
  figures.retries = p.retries;
  figures.fingerprint = p.fingerprint;
  if (p.communication) {
    Bytes sum;
    for (const TrafficRow& row : *p.communication) {
      if (row.phase != Pass::Setup && row.phase != Pass::Save) sum += row.wire;
    }
    figures.wire = sum;
  }
  if (p.time) {
    figures.tokens = p.time->tokens_per_second;
    figures.seconds = p.time->total;
  }
  return figures;
}

std::string remark(const SweepPoint& point) {
  if (!point.prediction) return point.reason;
  const Prediction& p = *point.prediction;
  if (p.verdict == Verdict::DoesNotFit && p.shortfall && *p.shortfall > Bytes(0)) {
    return formatted("{} short, at {}", human(*p.shortfall), p.failure);
  }
  if (p.verdict == Verdict::DoesNotFit || p.verdict == Verdict::Unknown) return p.verdict_reason;
  if (p.retries > 0 && p.peak && p.peak->process) {
    return formatted("{} retries, would use {}", p.retries, human(*p.peak->process));
  }
  return {};
}

// What a process that fits takes of its device: all of it where it gives memory back to fit.
std::string taken(const Prediction& p) {
  if (!p.peak || !p.peak->process || p.verdict == Verdict::DoesNotFit) return "-";
  return human(p.retries > 0 && p.capacity ? *p.capacity : *p.peak->process);
}

// The answer first: how many fit, and the fastest of them.
std::string summary(const std::vector<SweepAxis>& axes, const std::vector<SweepPoint>& points) {
  std::map<std::string, int> counts;
  const SweepPoint* best = nullptr;
  for (const SweepPoint& point : points) {
    ++counts[point.prediction ? in_words(point.prediction->verdict) : std::string("refused")];
    if (!point.prediction || point.prediction->verdict != Verdict::Fits || !point.prediction->time) continue;
    const auto speed = [](const SweepPoint& one) { return one.prediction->time->tokens_per_second; };
    if (best == nullptr || speed(point) > speed(*best)) best = &point;
  }
  std::vector<std::string> parts;
  for (const auto& [what, count] : counts) parts.push_back(formatted("{} {}", count, what));
  std::string text = formatted("{} points: {}", points.size(), joined(parts, ", "));
  if (best != nullptr) {
    std::vector<std::string> values;
    for (std::size_t i = 0; i < axes.size(); ++i) values.push_back(formatted("{} {}", axes[i].name, best->values[i]));
    text += formatted("; the fastest that fits: {}, {} tokens/s", joined(values, ", "),
                      grouped(std::llround(best->prediction->time->tokens_per_second)));
  }
  return text;
}

namespace {

std::string table_of(const std::vector<SweepAxis>& axes, const std::vector<SweepPoint>& points, bool colour) {
  using Align = Table::Align;
  std::vector<std::string> titles;
  std::vector<Align> aligns;
  for (const SweepAxis& axis : axes) {
    titles.push_back(axis.name);
    const bool numbers = axis.values.front().find_first_not_of("0123456789") == std::string::npos;
    aligns.push_back(numbers ? Align::Right : Align::Left);
  }
  for (const char* title : {"verdict", "takes", "needs", "tokens/s", ""}) {
    titles.emplace_back(title);
    const bool words = titles.back().empty() || titles.back() == "verdict";
    aligns.push_back(words ? Align::Left : Align::Right);
  }
  Table table(std::move(titles), std::move(aligns));
  for (const SweepPoint& point : points) {
    std::vector<std::string> cells = point.values;
    const SweepFigures figures = point.prediction ? figures_at(*point.prediction) : SweepFigures{};
    cells.push_back(point.prediction ? in_words(point.prediction->verdict) : "refused");
    cells.push_back(point.prediction ? taken(*point.prediction) : "-");
    cells.push_back(figures.needed ? human(*figures.needed) : "-");
    cells.push_back(figures.tokens ? grouped(std::llround(*figures.tokens)) : "-");
    cells.push_back(remark(point));
    table.row(std::move(cells));
  }
  std::string text = wrapped("", summary(axes, points), 2);
  text.pop_back();
  return painted(text, Paint::Strong, colour) + "\n\n" + table.lines(points.size());
}

// The words without --vary and what it takes.
Words without_vary(const Words& words) {
  Words rest;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--") {
      rest.insert(rest.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      break;
    }
    if (words[i] == "--vary") {
      ++i;
    } else if (!words[i].starts_with("--vary=")) {
      rest.push_back(words[i]);
    }
  }
  return rest;
}

std::string format_of(const Request& request, Diagnostics& faults) {
  const std::string format = request.format.value_or("table");
  if (format != "table" && format != "csv" && format != "json" && format != "html") {
    faults.add(request.format.place.says(formatted("no format \"{}\" of sweep", format),
                                         "formats are table, csv, json, html"));
  }
  return format;
}

}  // namespace

int sweep_command(const Words& words) {
  std::vector<std::string> vary;
  CommandExtras extras;
  extras.description = "Predicts every combination of values along axes.";
  extras.footer = kSweepFooter;
  extras.model_needed = false;
  extras.without = {"--explain", "--verbose"};
  extras.add = [&vary](CommandLine& line) {
    line.list("--vary", "AXIS=V1,V2,A..B", "What changes from point to point; repeatable", vary);
  };
  const SimulateWords said = parse_simulate("sweep", words, extras);
  Diagnostics faults;
  const std::vector<SweepAxis> axes = axes_in(vary, faults);
  const std::string format = format_of(said.options, faults);
  const bool varies_model =
      std::any_of(axes.begin(), axes.end(), [](const SweepAxis& one) { return one.option == "model"; });
  if (said.model.empty() && !varies_model && !faults.any()) {
    faults.add({"dsplan sweep", 0, 0, {}, "MODEL is missing", "`dsplan show models` lists the bundled ones"});
  }
  faults.throw_if_any();
  Output output(said.options.out.value_or(""));
  Words base = without_vary(words);
  const auto model = std::find(base.begin(), std::find(base.begin(), base.end(), "--"), said.model);
  if (!said.model.empty() && model != base.end()) base.erase(model);
  InputsOfPoints inputs(std::move(base), said.model, axes);
  std::vector<SweepPoint> points = points_of(axes);
  CountProgress progress(points.size(), "points");
  in_parallel(points.size(), [&](std::size_t at) {
    predict_point(inputs, points[at]);
    progress.done();
  });
  progress.clear();
  if (format == "csv") {
    output.add(sweep_csv(axes, points));
  } else if (format == "json") {
    output.add(sweep_json(said.model, axes, points));
  } else if (format == "html") {
    output.add(sweep_page(said.model, axes, points, command_line("sweep", words)));
  } else {
    output.add(table_of(axes, points, output.colour(said.color)));
  }
  output.finish();
  return kDone;
}

}  // namespace dsplan
