#include "io/allocator_trace.h"

#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/text/real_numbers.h"

namespace dsplan {
namespace {

using StepKind = TraceStep::Kind;

struct TraceWord {
  std::string_view text;
  std::size_t offset = 0;
};

struct Verb {
  std::string_view name;
  StepKind kind;
  std::size_t fields;
  std::string_view usage;
};

constexpr std::array<Verb, 8> kVerbs{{
    {"capacity", StepKind::Capacity, 1, "capacity BYTES"},
    {"conf", StepKind::Configure, 1, "conf KEY:VALUE,..."},
    {"fraction", StepKind::Fraction, 1, "fraction F"},
    {"alloc", StepKind::Allocate, 3, "alloc ID BYTES STREAM"},
    {"free", StepKind::Free, 1, "free ID"},
    {"record_stream", StepKind::RecordStream, 2, "record_stream ID STREAM"},
    {"events_ready", StepKind::EventsReady, 1, "events_ready 0|1"},
    {"empty_cache", StepKind::EmptyCache, 0, "empty_cache"},
}};

constexpr std::string_view kTraceBlanks = " \t\r";

class TraceReader {
 public:
  TraceReader(std::string path, std::string text) {
    trace_.document.path = std::move(path);
    trace_.document.text = std::move(text);
  }

  AllocatorTrace read() {
    const std::string_view text = trace_.document.text;
    for (std::size_t begin = 0; begin < text.size() && !faults_.full();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      read_line(begin, end);
      begin = end + 1;
    }
    faults_.throw_if_any();
    trace_.ids = static_cast<std::uint32_t>(ids_.size());
    return std::move(trace_);
  }

 private:
  void fault(std::size_t offset, std::string message, std::string hint = {}) {
    faults_.add(trace_.document.at(offset, std::move(message), std::move(hint)));
  }

  // Up to five words: one more than any line may have, so that a surplus one can be pointed at.
  std::size_t split(std::size_t begin, std::size_t end, std::array<TraceWord, 5>& words) const {
    const std::string_view line = std::string_view(trace_.document.text).substr(0, end);
    std::size_t count = 0;
    std::size_t at = begin;
    while (count < words.size()) {
      at = line.find_first_not_of(kTraceBlanks, at);
      if (at == std::string_view::npos) break;
      const std::size_t stop = std::min(line.find_first_of(kTraceBlanks, at), end);
      words[count++] = {line.substr(at, stop - at), at};
      at = stop;
    }
    return count;
  }

  void read_line(std::size_t begin, std::size_t end) {
    std::array<TraceWord, 5> words;
    const std::size_t count = split(begin, end, words);
    if (count == 0) return;
    const Verb* verb = nullptr;
    for (const Verb& known : kVerbs) {
      if (known.name == words[0].text) verb = &known;
    }
    if (verb == nullptr) {
      unknown(words[0]);
      return;
    }
    // PyTorch drops blanks inside a conf, so its value is the rest of the line.
    if (verb->kind == StepKind::Configure) {
      configure(begin, end, words[0]);
      return;
    }
    if (count - 1 != verb->fields) {
      fault(count - 1 > verb->fields ? words[verb->fields + 1].offset : end,
            formatted("this line reads '{}'", verb->usage));
      return;
    }
    fields(*verb, words);
  }

  void unknown(const TraceWord& word) {
    std::vector<std::string_view> names;
    for (const Verb& known : kVerbs) names.push_back(known.name);
    const std::string_view close = nearest(word.text, names);
    fault(word.offset, formatted("unknown call '{}'", word.text.substr(0, 40)),
          close.empty() ? "known: capacity, conf, fraction, alloc, free, record_stream, events_ready, empty_cache"
                        : formatted("did you mean \"{}\"?", close));
  }

  void configure(std::size_t begin, std::size_t end, const TraceWord& verb) {
    std::string_view text = std::string_view(trace_.document.text).substr(0, end);
    text.remove_prefix(verb.offset + verb.text.size());
    const std::size_t start = std::min(text.find_first_not_of(kTraceBlanks), text.size());
    const std::size_t stop = text.find_last_not_of(kTraceBlanks) + 1;
    if (start >= stop) {
      fault(end, "this line reads 'conf KEY:VALUE,...'");
      return;
    }
    const std::size_t offset = std::max(begin, verb.offset + verb.text.size()) + start;
    if (const auto bad = apply_allocator_conf(text.substr(start, stop - start), config_)) {
      fault(offset + bad->offset, bad->message, bad->hint);
      return;
    }
    TraceStep step;
    step.kind = StepKind::Configure;
    step.config = static_cast<std::uint32_t>(trace_.configs.size());
    step.offset = offset;
    trace_.configs.push_back(config_);
    trace_.steps.push_back(step);
  }

  void fields(const Verb& verb, const std::array<TraceWord, 5>& words) {
    TraceStep step;
    step.kind = verb.kind;
    step.offset = words[verb.fields == 0 ? 0 : 1].offset;
    bool good = true;
    switch (verb.kind) {
      case StepKind::Capacity: good = bytes(words[1], 1, step); break;
      case StepKind::Fraction: good = fraction(words[1], step); break;
      case StepKind::Allocate: good = id(words[1], step) && bytes(words[2], 0, step) && stream(words[3], step); break;
      case StepKind::Free: good = id(words[1], step); break;
      case StepKind::RecordStream: good = id(words[1], step) && stream(words[2], step); break;
      case StepKind::EventsReady: good = ready(words[1], step); break;
      case StepKind::EmptyCache:
      case StepKind::Configure: break;
    }
    if (good) trace_.steps.push_back(step);
  }

  std::optional<std::int64_t> number(const TraceWord& word, std::string_view what) {
    std::int64_t value = 0;
    const char* const end = word.text.data() + word.text.size();
    const auto [rest, error] = std::from_chars(word.text.data(), end, value);
    if (error == std::errc::result_out_of_range) {
      fault(word.offset, formatted("{} does not fit in 63 bits", what));
    } else if (error != std::errc() || rest != end || value < 0) {
      fault(word.offset, formatted("{} must be a whole number from 0", what));
    } else {
      return value;
    }
    return std::nullopt;
  }

  bool bytes(const TraceWord& word, std::int64_t least, TraceStep& step) {
    const auto value = number(word, "a size in bytes");
    if (!value) return false;
    if (*value < least) {
      fault(word.offset, formatted("this size must be at least {}", least));
      return false;
    }
    step.bytes = Bytes(*value);
    return true;
  }

  bool id(const TraceWord& word, TraceStep& step) {
    const auto value = number(word, "an ID");
    if (!value) return false;
    step.id = ids_.try_emplace(*value, static_cast<std::uint32_t>(ids_.size())).first->second;
    return true;
  }

  bool stream(const TraceWord& word, TraceStep& step) {
    const auto value = number(word, "a stream");
    if (!value) return false;
    const auto [at, added] = streams_.try_emplace(*value, static_cast<std::uint16_t>(streams_.size()));
    if (added && streams_.size() > kMostTraceStreams) {
      streams_.erase(at);
      fault(word.offset, formatted("more than {} streams", kMostTraceStreams));
      return false;
    }
    step.stream = at->second;
    return true;
  }

  bool fraction(const TraceWord& word, TraceStep& step) {
    const std::optional<double> read = real_number(word.text);
    step.fraction = read.value_or(-1);
    const bool good = step.fraction >= 0 && step.fraction <= 1;
    if (!good) fault(word.offset, "a fraction is a number in 0 to 1");
    return good;
  }

  bool ready(const TraceWord& word, TraceStep& step) {
    if (word.text != "0" && word.text != "1") {
      fault(word.offset, "events_ready is 0 or 1");
      return false;
    }
    step.ready = word.text == "1";
    return true;
  }

  AllocatorTrace trace_;
  Diagnostics faults_;
  AllocatorConfig config_;
  std::unordered_map<std::int64_t, std::uint32_t> ids_;
  std::unordered_map<std::int64_t, std::uint16_t> streams_;
};

}  // namespace

AllocatorTrace read_allocator_trace(std::string path, std::string text) {
  return TraceReader(std::move(path), std::move(text)).read();
}

}  // namespace dsplan
