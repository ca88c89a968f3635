#include "core/allocator_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <vector>

#include "core/document.h"
#include "core/error.h"

namespace dsplan {
namespace {

struct Token {
  std::string text;
  std::size_t offset;
};

// PyTorch splits at these four characters and drops blanks wherever they stand.
std::vector<Token> lex(std::string_view text) {
  std::vector<Token> tokens;
  bool open = false;  // The last token is a word that may go on.
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == ',' || c == ':' || c == '[' || c == ']') {
      tokens.push_back({std::string(1, c), at});
      open = false;
    } else if (c != ' ') {
      if (!open) tokens.push_back({{}, at});
      open = true;
      tokens.back().text += c;
    }
  }
  return tokens;
}

// An environment variable cannot be longer (Linux, MAX_ARG_STRLEN).
constexpr std::size_t kLongest = 128 * 1024;

// The part of a word that a message shows.
std::string_view shown(std::string_view word) { return word.substr(0, 40); }

// Thrown inside this file only; a fault ends the reading, as in PyTorch.
struct Stop {
  ConfFault fault;
};

class ConfReader {
 public:
  ConfReader(std::string_view text, AllocatorConfig& config)
      : end_(text.size()), tokens_(lex(text)), config_(&config) {}

  void read() {
    while (at_ < tokens_.size()) {
      read_option();
      if (at_ < tokens_.size()) expect(",");
    }
  }

 private:
  [[noreturn]] void fail(std::string message, std::string hint = {}) const {
    throw Stop{{at_ < tokens_.size() ? tokens_[at_].offset : end_, std::move(message), std::move(hint)}};
  }

  [[nodiscard]] bool peek(std::string_view text) const { return at_ < tokens_.size() && tokens_[at_].text == text; }

  void expect(std::string_view text) {
    if (!peek(text)) fail(fmt::format("expected '{}'", text));
    ++at_;
  }

  const std::string& word(std::string_view what) const {
    if (at_ >= tokens_.size() || tokens_[at_].text.find_first_of(",:[]") == 0) fail(fmt::format("expected {}", what));
    return tokens_[at_].text;
  }

  // A number between `least` and `most`; does not advance before all is well, so that faults point at it.
  std::int64_t integer(std::string_view key, std::int64_t least, std::int64_t most, std::string_view rule) {
    const std::string& text = word("a whole number");
    std::int64_t value = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || rest != text.data() + text.size()) {
      fail(fmt::format("{} must be a whole number, not '{}'", key, shown(text)));
    }
    if (value < least || value > most) fail(fmt::format("{} is {}, but must be {}", key, value, rule));
    ++at_;
    return value;
  }

  double real(std::string_view key) {
    const std::string& text = word("a number");
    double value = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || rest != text.data() + text.size()) {
      fail(fmt::format("{} must be a number, not '{}'", key, shown(text)));
    }
    return value;
  }

  bool boolean(std::string_view key) {
    if (!peek("True") && !peek("False")) fail(fmt::format("{} must be True or False", key));
    return tokens_[at_++].text == "True";
  }

  std::int64_t power_of_two(std::string_view what) {
    const std::size_t start = at_;
    const std::int64_t value = integer(what, 0, INT32_MAX, "at most 2147483647");
    if (!std::has_single_bit(static_cast<std::uint64_t>(value))) {
      at_ = start;
      fail(fmt::format("{} must be a power of two, not {}", what, value));
    }
    return value;
  }

  Bytes mebibytes(std::string_view key, std::int64_t more_than) {
    // PyTorch reads a C int.
    return Bytes(integer(key, more_than + 1, INT32_MAX, fmt::format("more than {} (MiB)", more_than)) * kMebibyte);
  }

  void divisions() {
    auto& table = config_->roundup_power2_divisions;
    if (!peek("[")) {
      table.fill(power_of_two("roundup_power2_divisions"));
      return;
    }
    ++at_;
    std::size_t last = 0;
    bool first = true;
    while (!peek("]")) {
      const bool rest = peek(">");
      std::size_t index = last;
      if (rest) {
        ++at_;
      } else {
        const auto key = static_cast<std::uint64_t>(power_of_two("an interval of roundup_power2_divisions"));
        index = std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(key)) - 1, table.size() - 1);
      }
      expect(":");
      const std::int64_t value = power_of_two("a division of roundup_power2_divisions");
      if (rest) {
        // From the last key's own entry on: '>' overwrites that key, as in PyTorch.
        std::fill(table.begin() + static_cast<std::ptrdiff_t>(index), table.end(), value);
      } else {
        if (first) std::fill(table.begin(), table.begin() + static_cast<std::ptrdiff_t>(index), value);
        table[index] = value;
        first = false;
        last = index;
      }
      if (!peek("]")) expect(",");
    }
    ++at_;
  }

  void threshold() {
    const double value = real("garbage_collection_threshold");
    if (!(value > 0 && value < 1)) fail("garbage_collection_threshold must lie between 0 and 1, both excluded");
    config_->garbage_collection_threshold = value;
    ++at_;
  }

  void fraction() {
    const double value = real("per_process_memory_fraction");
    if (!(value >= 0 && value <= 1)) fail("per_process_memory_fraction must lie in 0 to 1");
    config_->memory_fraction = value;
    ++at_;
  }

  void backend() {
    if (peek("cudaMallocAsync")) {
      fail("backend:cudaMallocAsync is another allocator, which dsplan does not model", "use backend:native");
    }
    if (!peek("native")) fail("backend must be native or cudaMallocAsync");
    ++at_;
  }

  void read_option() {
    const std::size_t start = at_;
    const std::string key = word("an option");
    ++at_;
    static constexpr std::string_view kInert[] = {
        "release_lock_on_cudamalloc",   "release_lock_on_hipmalloc",         "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register", "pinned_use_background_threads",     "throw_on_cudamalloc_oom",
        "pinned_free_catch_all",        "graph_capture_record_stream_reuse",
    };
    if (std::find(std::begin(kInert), std::end(kInert), key) != std::end(kInert)) {
      expect(":");
      (void)boolean(key);
      return;
    }
    using Method = void (ConfReader::*)();
    static constexpr std::pair<std::string_view, Method> kOptions[] = {
        {"max_split_size_mb", &ConfReader::max_split},
        {"max_non_split_rounding_mb", &ConfReader::non_split},
        {"large_segment_size_mb", &ConfReader::large_segment},
        {"garbage_collection_threshold", &ConfReader::threshold},
        {"roundup_power2_divisions", &ConfReader::divisions},
        {"expandable_segments", &ConfReader::expandable},
        {"per_process_memory_fraction", &ConfReader::fraction},
        {"backend", &ConfReader::backend},
        {"pinned_num_register_threads", &ConfReader::register_threads},
        {"pinned_reserve_segment_size_mb", &ConfReader::reserve_segment},
    };
    std::vector<std::string_view> known(std::begin(kInert), std::end(kInert));
    for (const auto& [name, method] : kOptions) {
      known.push_back(name);
      if (name != key) continue;
      expect(":");
      (this->*method)();
      return;
    }
    at_ = start;
    const std::string_view close = nearest(key, known);
    fail(fmt::format("unknown allocator option '{}'", shown(key)),
         close.empty() ? "" : fmt::format("did you mean \"{}\"?", close));
  }

  void max_split() { config_->max_split_size = mebibytes("max_split_size_mb", 20); }
  void non_split() { config_->max_non_split_rounding = mebibytes("max_non_split_rounding_mb", 20); }
  void large_segment() { config_->large_segment_size = mebibytes("large_segment_size_mb", 10); }
  void expandable() { config_->expandable_segments = boolean("expandable_segments"); }
  void reserve_segment() { (void)mebibytes("pinned_reserve_segment_size_mb", 0); }
  void register_threads() {
    const std::size_t start = at_;
    if (power_of_two("pinned_num_register_threads") > 128) {
      at_ = start;
      fail("pinned_num_register_threads must be at most 128");
    }
  }

  std::size_t end_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  AllocatorConfig* config_;
};

}  // namespace

std::optional<ConfFault> apply_allocator_conf(std::string_view text, AllocatorConfig& config) {
  if (text.size() > kLongest) return ConfFault{kLongest, "an allocator conf has at most 131072 characters", {}};
  AllocatorConfig next = config;
  const AllocatorConfig defaults;
  next.max_split_size = defaults.max_split_size;
  next.garbage_collection_threshold = defaults.garbage_collection_threshold;
  next.roundup_power2_divisions = defaults.roundup_power2_divisions;
  try {
    ConfReader(text, next).read();
  } catch (Stop& stop) {
    return std::move(stop.fault);
  }
  config = next;
  return std::nullopt;
}

AllocatorConfig parse_allocator_conf(std::string_view text, const std::string& where) {
  AllocatorConfig config;
  if (auto fault = apply_allocator_conf(text, config)) {
    throw Refusal(
        std::vector<Diagnostic>{{where, 1, fault->offset + 1, std::string(text), fault->message, fault->hint}});
  }
  return config;
}

}  // namespace dsplan
