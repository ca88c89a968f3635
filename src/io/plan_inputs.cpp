#include "io/plan_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "core/format.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

constexpr int kMostDigits = 100;         // A tick is never shorter than 10^-100 units.
constexpr int kKeptDigits = 18;          // Of one time; more than a double has.
constexpr std::int64_t kTimesTaken = 4;  // How often one plan may take each time: forward twice, and to spare.

// A time as it is written: mantissa * 10^exponent.
struct Decimal {
  std::int64_t mantissa = 0;
  int exponent = 0;
  bool cut = false;  // Digits beyond kKeptDigits were dropped.

  [[nodiscard]] long double value(int digits) const {
    return static_cast<long double>(mantissa) * std::pow(10.0L, exponent + digits);
  }
};

// The number that starts `text`, which the JSON parser has accepted and which is not negative.
Decimal decimal_at(std::string_view text) {
  Decimal read;
  int taken = 0, zeros = 0;  // Zeros not yet known to be inside the number.
  bool point = false;
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '.') {
      point = true;
      continue;
    }
    if (c < '0' || c > '9') break;
    if (point) --read.exponent;
    if (c == '0' && read.mantissa == 0) continue;
    ++zeros;
    if (c == '0') continue;
    if (taken + zeros > kKeptDigits) {
      read.cut = true;
      continue;
    }
    for (; zeros > 0; --zeros) read.mantissa *= 10;
    read.mantissa += c - '0';
    taken = static_cast<int>(std::to_string(read.mantissa).size());
  }
  read.exponent += zeros;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    // No double is near the end of this range, and the parser has refused what is no double.
    read.exponent += static_cast<int>(std::clamp(std::strtol(text.data() + at + 1, nullptr, 10), -10'000L, 10'000L));
  }
  return read.mantissa == 0 ? Decimal{} : read;
}

class ChainReader {
 public:
  ChainReader(const Document& document, Diagnostics& diagnostics) : document_(document), diagnostics_(diagnostics) {}

  void read(ObjectReader& reader, Chain& chain) {
    chain.source = read_head(reader, "chain");
    chain.input = required_bytes(reader, "input_bytes");
    chain.input_gradient = required_bytes(reader, "input_gradient");
    if (!reader.has("stages")) reader.fault("stages", "\"stages\" is missing: a chain has at least one");
    if (const Value* stages = reader.array("stages")) read_stages(*stages, chain);
    reader.refuse_unread("the chain");
    if (!diagnostics_.any()) count_ticks(reader, chain);
    if (!diagnostics_.any()) check_sum(reader);
  }

 private:
  void read_stages(const Value& stages, Chain& chain) {
    if (stages.items.empty() || stages.items.size() > kMostStages) {
      fault(stages, formatted("{} stages; a chain has from 1 to {}", stages.items.size(), kMostStages));
      return;
    }
    chain.stages.resize(stages.items.size());
    times_.reserve(3 * stages.items.size());
    for (std::size_t i = 0; i < stages.items.size() && !diagnostics_.full(); ++i) {
      const Value& item = stages.items[i];
      if (!item.is(Value::Kind::Object)) {
        fault(item, formatted("stage {} must be an object, not {}", i + 1, describe(item.kind)));
        continue;
      }
      ObjectReader reader(document_, item, diagnostics_);
      read_stage(reader, chain.stages[i]);
      reader.refuse_unread("a stage");
    }
  }

  void read_stage(ObjectReader& reader, ChainStage& stage) {
    const std::size_t before = diagnostics_.count();
    stage.output = required_bytes(reader, "output");
    stage.saved = required_bytes(reader, "saved");
    stage.gradient = required_bytes(reader, "gradient");
    stage.forward_temporary = bytes(reader, "forward_temporary");
    stage.backward_temporary = bytes(reader, "backward_temporary");
    stage.gathered = bytes(reader, "gathered");
    required_time(reader, "forward_time", stage.forward_time);
    required_time(reader, "backward_time", stage.backward_time);
    if (reader.has("gather_time")) time(reader, "gather_time", stage.gather_time);
    if (diagnostics_.count() == before) check_saved(reader, stage.saved, stage.output);
    const Value* options = reader.array("options");
    if (options == nullptr) return;
    stage.options.resize(options->items.size());  // Before any time is noted: the notes are pointers.
    for (std::size_t k = 0; k < options->items.size(); ++k) read_option(options->items[k], k, stage);
  }

  void read_option(const Value& item, std::size_t index, ChainStage& stage) {
    if (!item.is(Value::Kind::Object)) {
      fault(item, formatted("an option must be an object, not {}", describe(item.kind)));
      return;
    }
    ObjectReader reader(document_, item, diagnostics_);
    ChainOption& option = stage.options[index];
    const std::size_t before = diagnostics_.count();
    option.name = reader.string("name").value_or("");
    if (option.name.empty()) reader.fault("name", "\"name\" is missing: an option is called by it");
    for (std::size_t k = 0; k < index; ++k) {
      if (stage.options[k].name == option.name && !option.name.empty())
        reader.fault("name", formatted("two options of this stage are called \"{}\"", option.name));
    }
    option.saved = required_bytes(reader, "saved");
    required_time(reader, "time", option.time);
    option.forward_temporary = required_bytes(reader, "forward_temporary");
    option.backward_temporary = required_bytes(reader, "backward_temporary");
    if (diagnostics_.count() == before) check_saved(reader, option.saved, stage.output);
    reader.refuse_unread("an option");
  }

  void check_saved(ObjectReader& reader, Bytes saved, Bytes output) {
    if (saved >= output) return;
    reader.fault("saved", formatted("\"saved\" is {}, but it contains the stage's output of {} bytes", saved.value(),
                                    output.value()));
  }

  Bytes bytes(ObjectReader& reader, std::string_view key) {
    const std::int64_t read = reader.integer(key, 0, kMostChainBytes).value_or(0);
    if (__builtin_add_overflow(sum_, read, &sum_)) sum_ = INT64_MAX;
    return Bytes(read);
  }
  Bytes required_bytes(ObjectReader& reader, std::string_view key) {
    if (!reader.has(key)) reader.fault(key, formatted("\"{}\" is missing", key));
    return bytes(reader, key);
  }

  void required_time(ObjectReader& reader, std::string_view key, Ticks& into) {
    if (reader.has(key)) {
      time(reader, key, into);
    } else {
      reader.fault(key, formatted("\"{}\" is missing", key));
    }
  }
  void time(ObjectReader& reader, std::string_view key, Ticks& into) {
    const std::optional<double> read = reader.number(key);
    if (!read) return;
    if (*read < 0 || std::signbit(*read)) {
      reader.fault(key, formatted("\"{}\" must be at least 0, not {}", key, *read));
      return;
    }
    times_.emplace_back(&into, decimal_at(std::string_view(document_.text).substr(reader.find(key)->offset)));
  }

  // The finest tick at which all times are whole, or, where there would be too many, the finest that is not too fine.
  void count_ticks(ObjectReader& reader, Chain& chain) {
    long double sum = 0;
    for (const auto& [into, decimal] : times_) {
      sum += decimal.value(0);
      if (decimal.mantissa != 0) chain.digits = std::max(chain.digits, -decimal.exponent);
    }
    const auto most = static_cast<long double>(kMostTicks / kTimesTaken);
    if (sum > 0 && (chain.digits > kMostDigits || sum * std::pow(10.0L, chain.digits) >= most)) {
      chain.digits = std::min(static_cast<int>(std::floor(std::log10(most / sum))), kMostDigits);
    }
    if (chain.digits < -kMostDigits) reader.fault("stages", "the times of the stages are too large together");
    for (const auto& [into, decimal] : times_) {
      const long double ticks = decimal.value(chain.digits);
      *into = Ticks(std::llround(ticks));
      chain.times_rounded = chain.times_rounded || decimal.cut || decimal.exponent + chain.digits < 0;
    }
  }

  void check_sum(ObjectReader& reader) {
    if (sum_ < kMostChainBytes) return;
    reader.fault("stages", "the sizes of the stages are too large together: their sum must stay below 2^58 bytes");
  }

  void fault(const Value& value, std::string message) {
    diagnostics_.add(document_.at(value.offset, std::move(message)));
  }

  const Document& document_;
  Diagnostics& diagnostics_;
  std::vector<std::pair<Ticks*, Decimal>> times_;  // Where each goes once the tick is known.
  std::int64_t sum_ = 0;                           // Of all sizes.
};

}  // namespace

Chain read_chain(const Document& document, std::string name) {
  expect_object(document, "a chain");
  Chain chain;
  chain.name = std::move(name);
  Diagnostics diagnostics;
  ObjectReader reader(document, document.root, diagnostics);
  ChainReader(document, diagnostics).read(reader, chain);
  diagnostics.throw_if_any();
  return chain;
}

namespace {

void read_axis(const Document& document, Axis axis, const Value& list, Diagnostics& faults, ListedSpace& into) {
  ListedAxis listed;
  listed.axis = axis;
  listed.place = place_at(document, list.offset);
  for (const Value& item : list.items) {
    const Place place = place_at(document, item.offset);
    if (item.is(Value::Kind::Integer)) {
      listed.values.push_back({std::to_string(item.integer), place});
    } else if (item.is(Value::Kind::String)) {
      listed.values.push_back({item.string, place});
    } else {
      faults.add(document.at(item.offset, formatted("a value of \"{}\" is a whole number or a word, not {}", name(axis),
                                                    describe(item.kind))));
    }
  }
  into.axes.push_back(std::move(listed));
}

}  // namespace

ListedSpace read_space(const Document& document) {
  expect_object(document, "a space");
  Diagnostics faults;
  ObjectReader reader(document, document.root, faults);
  (void)read_head(reader, "space");
  ListedSpace space;
  for (std::size_t i = 0; i < kAxes; ++i) {
    const Axis axis = static_cast<Axis>(i);
    if (const Value* list = reader.array(name(axis))) read_axis(document, axis, *list, faults, space);
  }
  constexpr std::int64_t kMostRows = std::int64_t{1} << 40;
  if (const auto rows = reader.integer("global_batch", 1, kMostRows)) {
    space.global_batch = {*rows, place_at(document, reader.find("global_batch")->offset)};
  }
  reader.refuse_unread("a space");
  faults.throw_if_any();
  return space;
}

}  // namespace dsplan
