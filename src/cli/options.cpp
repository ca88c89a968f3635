#include "cli/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <variant>

#include "cli/command_line.h"
#include "core/format.h"
#include "core/settings.h"
#include "core/text/whole_numbers.h"
#include "core/units.h"
#include "io/hub/hub.h"

namespace dsplan {
namespace {

// The rows that --help shows, in its order.
std::vector<const RequestColumn*> option_rows() {
  std::vector<const RequestColumn*> rows;
  for (const SettingRow& row : settings()) {
    if (row.request.option != nullptr) rows.push_back(&row.request);
  }
  return rows;
}

// Refused whatever their value until they are modelled: nobody needs to read of them.
constexpr std::array<std::string_view, 3> kNotYet = {"--sp", "--ep", "--env"};

constexpr const char* kOptionsFooter =
    "After \"--\" comes the command that starts the job (torchrun, ...).\n"
    "--explain memory: bytes by role. peak: the largest live buffers. saved: what\n"
    "each autograd node keeps. traffic: every collective. time: seconds by phase.\n"
    "fragmentation: what lies between allocated and reserved. advice: which settings\n"
    "cost memory for nothing, by predicting without them. assumed: each assumption,\n"
    "how far off the figures may be, and what is not modelled, with the reasons.\n"
    "Example: dsplan simulate llama-3-8b --zero-stage 3 --gpus 8 --hardware h100-sxm\n"
    "Exit codes: 0 it fits or nobody can say, 2 refused, 3 it does not fit.";

// By Topic.
constexpr std::array<std::string_view, 8> kTopics = {"memory", "peak",          "saved",  "traffic",
                                                     "time",   "fragmentation", "advice", "assumed"};

// "--explain" may stand alone; then the next word is not its value.
Words with_topics(const Words& words, std::size_t end) {
  Words result;
  for (std::size_t i = 0; i < end; ++i) {
    if (words[i] != "--explain") {
      result.push_back(words[i]);
      continue;
    }
    const bool named = i + 1 < end && std::find(kTopics.begin(), kTopics.end(), words[i + 1]) != kTopics.end();
    result.push_back("--explain=" + (named ? words[++i] : "peak"));
  }
  return result;
}

void take(const RequestColumn& row, const std::string& text, Request& request, Diagnostics& diagnostics) {
  const RequestAccess::Write field = row.field.of(request);
  if (const auto* said = std::get_if<Setting<std::string>*>(&field)) {
    **said = {text, option(row.option)};
  } else if (const auto* number = std::get_if<Setting<std::int64_t>*>(&field)) {
    if (const auto read = whole_number(row.option, text, diagnostics)) **number = {*read, option(row.option)};
  } else if (const auto* truth = std::get_if<Setting<bool>*>(&field)) {
    if (text == "true" || text == "false") {
      **truth = {text == "true", option(row.option)};
    } else {
      diagnostics.add(option(row.option).says(formatted("\"{}\" is neither true nor false", text)));
    }
  } else if (const auto read = labelled_size(row.option, text, diagnostics)) {
    *std::get<Setting<Bytes>*>(field) = {*read, option(row.option)};
  }
}

void take_topics(const std::vector<std::string>& texts, SimulateWords& into, Diagnostics& diagnostics) {
  for (const std::string& text : texts) {
    const auto* found = std::find(kTopics.begin(), kTopics.end(), text);
    if (found != kTopics.end()) {
      into.explain.push_back(static_cast<Topic>(found - kTopics.begin()));
    } else {
      std::string hint = did_you_mean(text, {kTopics.begin(), kTopics.end()});
      if (hint.empty()) hint = formatted("topics are {}", joined(kTopics, ", "));
      diagnostics.add({"--explain", 0, 0, {}, formatted("no topic \"{}\"", text), std::move(hint)});
    }
  }
}

void take_color(const std::optional<std::string>& text, SimulateWords& into, Diagnostics& diagnostics) {
  if (!text) return;
  into.color = *text;
  if (*text == "auto" || *text == "always" || *text == "never") return;
  diagnostics.add({"--color", 0, 0, {}, formatted("no way \"{}\" to colour", *text), "it is auto, always or never"});
}

void put(const RequestColumn& row, const Request& request, Words& words) {
  const RequestAccess::Read field = row.field.of(request);
  std::string text;
  if (const auto* said = std::get_if<const Setting<std::string>*>(&field)) {
    if (!(*said)->given()) return;
    text = ***said;
  } else if (const auto* number = std::get_if<const Setting<std::int64_t>*>(&field)) {
    if (!(*number)->given()) return;
    text = std::to_string(***number);
  } else if (const auto* truth = std::get_if<const Setting<bool>*>(&field)) {
    if (!(*truth)->given()) return;
    text = ***truth ? "true" : "false";
  } else {
    const Setting<Bytes>& size = *std::get<const Setting<Bytes>*>(field);
    if (!size.given()) return;
    text = formatted("{}B", (*size).value());
  }
  words.insert(words.end(), {row.option, std::move(text)});
}

}  // namespace

Words words_of(const SimulateWords& said) {
  Words words;
  for (const RequestColumn* row : option_rows()) {
    if (!row->stays_behind) put(*row, said.options, words);
  }
  const auto repeat = [&](const char* name, const Setting<std::vector<std::string>>& list) {
    if (!list.given()) return;
    for (const std::string& one : *list) words.insert(words.end(), {name, one});
  };
  repeat("--freeze", said.options.freeze);
  repeat("--set", said.options.set);
  if (!said.launch.empty()) words.push_back("--");
  words.insert(words.end(), said.launch.begin(), said.launch.end());
  return words;
}

void refuse_all_but(std::span<const std::string_view> meaningful, const Request& options, std::string_view what,
                    Diagnostics& diagnostics) {
  const Request nothing;
  visit_settings(options, nothing, [&](const auto& setting, const auto&) {
    if (!setting.given()) return;
    if (std::find(meaningful.begin(), meaningful.end(), setting.place.text()) != meaningful.end()) return;
    diagnostics.add(setting.place.says(formatted("has no meaning for {}", what)));
  });
}

std::optional<std::int64_t> whole_number(std::string_view option, std::string_view text, Diagnostics& diagnostics) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  // As lengths are called: 8k is 8192; and as counts are: 500M is 500,000,000.
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  const std::int64_t times = unit == "k" || unit == "K" ? 1024 : unit == "M" ? 1'000'000 : 0;
  if (error == std::errc() && times > 0 && !__builtin_mul_overflow(value, times, &value)) return value;
  const bool large = error == std::errc::result_out_of_range && end == text.data() + text.size();
  diagnostics.add(
      {std::string(option),
       0,
       0,
       {},
       large ? formatted("{} does not fit in 63 bits", text) : formatted("\"{}\" is not a whole number", text),
       large ? "" : "as 8192, 8k or 500M"});
  return std::nullopt;
}

namespace {

// Of "67.2GiB", which is no whole number of bytes, the whole ones. Empty: the text is no such size.
std::optional<Bytes> whole_bytes_of(std::string_view text) {
  const std::size_t point = text.find('.');
  const std::size_t unit = point == text.npos ? text.npos : text.find_first_not_of("0123456789", point + 1);
  constexpr std::size_t kMostDecimals = 4;
  if (unit == text.npos || unit - point < 2 || unit - point - 1 > kMostDecimals) return std::nullopt;
  const std::string unit_name(text.substr(unit));
  const std::optional<std::int64_t> decimals = whole_number(text.substr(point + 1, unit - point - 1));
  const std::optional<Bytes> whole = parse_bytes(std::string(text.substr(0, point)) + unit_name);
  const std::optional<Bytes> one = parse_bytes("1" + unit_name);
  if (!decimals || !whole || !one) return std::nullopt;
  std::int64_t scale = 1;
  for (std::size_t digit = point + 1; digit < unit; ++digit) scale *= 10;
  return *whole + Bytes(one->value() * *decimals / scale);
}

}  // namespace

std::optional<Bytes> labelled_size(std::string_view option, std::string_view text, Diagnostics& diagnostics) {
  const bool bare = text.find_first_not_of("0123456789.") == std::string_view::npos && !text.empty();
  if (!bare) {
    if (const std::optional<Bytes> read = parse_bytes(text)) return read;
  }
  if (const std::optional<Bytes> near = bare ? std::nullopt : whole_bytes_of(text)) {
    diagnostics.add({std::string(option),
                     0,
                     0,
                     {},
                     formatted("\"{}\" is no whole number of bytes", text),
                     formatted("write {}B", near->value())});
    return std::nullopt;
  }
  diagnostics.add({std::string(option),
                   0,
                   0,
                   {},
                   bare ? formatted("\"{}\" is a size without a unit", text) : formatted("\"{}\" is not a size", text),
                   bare ? formatted("write {0}GiB (2^30), {0}GB (10^9) or {0}B", text)
                        : std::string("write 80GiB, 512MiB, 80GB or 1024B")});
  return std::nullopt;
}

namespace {

bool values_say(const std::vector<const RequestColumn*>& rows, const std::vector<std::optional<std::string>>& values,
                std::string_view option) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i]->option == option) return values[i].has_value();
  }
  return false;
}

// A word as a shell reads it back.
std::string shell_word(const std::string& word) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./:,+=@%").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace

std::string command_line(std::string_view command, const Words& words) {
  std::string text = formatted("dsplan {}", command);
  for (const std::string& word : words) text += " " + shell_word(word);
  return text;
}

SimulateWords parse_simulate(std::string_view command, const Words& words, const CommandExtras& extras) {
  const auto dashes = std::find(words.begin(), words.end(), "--");
  const auto end = static_cast<std::size_t>(dashes - words.begin());
  SimulateWords result;
  if (dashes != words.end()) result.launch.assign(dashes + 1, words.end());

  CommandLine line(formatted("dsplan {}", command), extras.description,
                   extras.footer.empty() ? std::string(kOptionsFooter) : extras.footer);
  std::optional<std::string> model;
  const std::vector<const RequestColumn*> rows = option_rows();
  std::vector<std::optional<std::string>> values(rows.size());
  std::vector<std::string> freeze, set, topics;
  std::optional<std::string> color;
  bool strict = false;
  bool offline = false;
  if (extras.before_model) extras.before_model(line);
  line.positional("MODEL", "Bundled name, config.json, folder, cached id", model);
  if (extras.add) extras.add(line);
  const auto among = [](const auto& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const auto here = [&](std::string_view name) { return !among(extras.without, name); };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool listed = !among(kNotYet, rows[i]->option) && !among(extras.refused, rows[i]->option);
    if (here(rows[i]->option)) line.option(rows[i]->option, rows[i]->type, rows[i]->help, values[i], listed);
  }
  line.list("--freeze", "GLOB", "Parameters without gradients; may be repeated", freeze);
  line.list("--set", "KEY=VALUE", "fsdp.wrap=ends, model_init=host, ...", set);
  if (here("--explain")) line.list("--explain", "TOPIC", "Adds to the table: memory, peak, traffic, ...", topics);
  if (here("--verbose")) line.flag("--verbose", "The whole report instead of the first screen", result.verbose);
  if (here("--color")) line.option("--color", "auto|always|never", "Colour: on a terminal, or as said", color);
  if (here("--strict")) line.flag("--strict", "Refuse every assumed input", strict);
  line.flag("--offline", "Never ask the Hugging Face hub", offline);
  line.parse(with_topics(words, end));

  Diagnostics diagnostics;
  // A training file or a launch line may name it (cli/assemble.h).
  if (!model && extras.model_needed && !values_say(rows, values, "--training") && result.launch.empty())
    diagnostics.add(
        {formatted("dsplan {}", command), 0, 0, {}, "MODEL is missing", "`dsplan show models` lists the bundled ones"});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (values[i]) take(*rows[i], *values[i], result.options, diagnostics);
  }
  take_topics(topics, result, diagnostics);
  take_color(color, result, diagnostics);
  diagnostics.throw_if_any();
  if (!freeze.empty()) result.options.freeze = {std::move(freeze), option("--freeze")};
  if (!set.empty()) result.options.set = {std::move(set), option("--set")};
  if (strict) result.options.strict = {true, option("--strict")};
  if (offline) forbid_network();
  result.model = model.value_or("");
  return result;
}

namespace {

void take_tolerance(const std::string& text, Tolerances& into, Diagnostics& faults) {
  const auto refuse = [&](std::string message, std::string hint = {}) {
    faults.add({"--tolerance", 0, 0, {}, std::move(message), std::move(hint)});
  };
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) return refuse(formatted("\"{}\" is not KIND=N", text), "write reserved=1%");
  const std::string word = text.substr(0, equals);
  std::optional<RowKind> kind;
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < kRowKinds; ++i) {
    if (static_cast<RowKind>(i) == RowKind::Verdict) continue;
    names.push_back(name(static_cast<RowKind>(i)));
    if (names.back() == word) kind = static_cast<RowKind>(i);
  }
  if (!kind) return refuse(formatted("no kind \"{}\"", word), did_you_mean(word, names));
  if (into.by_kind.contains(*kind)) return refuse(formatted("\"{}\" is given more than once", word));
  std::string value = text.substr(equals + 1);
  const bool percent = value.ends_with('%');
  if (percent) value.pop_back();
  // One decimal: permille.
  const std::size_t point = percent ? value.find('.') : std::string::npos;
  const bool tenth = point != std::string::npos && point + 2 == value.size();
  if (tenth) value.erase(point, 1);
  const std::optional<std::int64_t> read = whole_number("--tolerance", value, faults);
  if (!read) return;
  const std::int64_t permille = percent && !tenth ? checked_mul(*read, 10) : *read;
  if (*read < 0 || (percent && permille > 1000)) return refuse(formatted("{} is no tolerance", text));
  into.by_kind[*kind] = percent ? Tolerance{0, permille} : Tolerance{*read, 0};
}

}  // namespace

Tolerances read_tolerances(const std::vector<std::string>& texts) {
  Tolerances tolerances;
  Diagnostics faults;
  for (const std::string& text : texts) take_tolerance(text, tolerances, faults);
  faults.throw_if_any();
  return tolerances;
}

}  // namespace dsplan
