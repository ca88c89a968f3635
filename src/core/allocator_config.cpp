#include "core/allocator_config.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <vector>

#include "core/document.h"
#include "core/error.h"
#include "core/format.h"
#include "core/text/real_numbers.h"

namespace dsplan {
namespace {

struct Token {
  std::string text;
  std::size_t offset;
};

// PyTorch splits at these four characters and drops blanks wherever they stand; since 2.10 all white space.
std::vector<Token> lex(std::string_view text, bool all_space) {
  std::vector<Token> tokens;
  bool open = false;  // The last token is a word that may go on.
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == ',' || c == ':' || c == '[' || c == ']') {
      tokens.push_back({std::string(1, c), at});
      open = false;
    } else if (c != ' ' && !(all_space && c >= '\t' && c <= '\r')) {
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

// First versions of keys and of rules. 2.12 stands for what the main branch has and 2.11.0 has not.
constexpr Version k2_9{2, 9, 0};
constexpr Version k2_10{2, 10, 0};
constexpr Version k2_11{2, 11, 0};
constexpr Version k2_12{2, 12, 0};

class ConfReader {
 public:
  ConfReader(std::string_view text, AllocatorConfig& config, std::optional<Version> torch, ConfReading* reading)
      : end_(text.size()),
        tokens_(lex(text, !torch || *torch >= k2_10)),
        config_(&config),
        torch_(torch),
        reading_(reading) {}

  void read() {
    while (at_ < tokens_.size()) {
      read_option();
      if (at_ < tokens_.size()) expect(",");
    }
    judge_floors();
  }

 private:
  [[noreturn]] void fail(std::string message, std::string hint = {}) const {
    throw Stop{{at_ < tokens_.size() ? tokens_[at_].offset : end_, std::move(message), std::move(hint)}};
  }

  [[nodiscard]] bool peek(std::string_view text) const { return at_ < tokens_.size() && tokens_[at_].text == text; }

  void expect(std::string_view text) {
    if (!peek(text)) fail(formatted("expected '{}'", text));
    ++at_;
  }

  const std::string& word(std::string_view what) const {
    if (at_ >= tokens_.size() || tokens_[at_].text.find_first_of(",:[]") == 0) fail(formatted("expected {}", what));
    return tokens_[at_].text;
  }

  // A number between `least` and `most`; does not advance before all is well, so that faults point at it.
  std::int64_t integer(std::string_view key, std::int64_t least, std::int64_t most, std::string_view rule) {
    const std::string& text = word("a whole number");
    std::int64_t value = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || rest != text.data() + text.size()) {
      fail(formatted("{} must be a whole number, not '{}'", key, shown(text)));
    }
    if (value < least || value > most) fail(formatted("{} is {}, but must be {}", key, value, rule));
    ++at_;
    return value;
  }

  double real(std::string_view key) {
    const std::string& text = word("a number");
    const std::optional<double> value = real_number(text);
    if (!value) fail(formatted("{} must be a number, not '{}'", key, shown(text)));
    return value.value_or(0);
  }

  bool boolean(std::string_view key) {
    if (!peek("True") && !peek("False")) fail(formatted("{} must be True or False", key));
    return tokens_[at_++].text == "True";
  }

  std::int64_t power_of_two(std::string_view what, bool or_zero = false) {
    const std::size_t start = at_;
    const std::int64_t value = integer(what, 0, INT32_MAX, "at most 2147483647");
    if (!std::has_single_bit(static_cast<std::uint64_t>(value)) && !(or_zero && value == 0)) {
      at_ = start;
      fail(formatted("{} must be a power of two{}, not {}", what, or_zero ? " or 0" : "", value));
    }
    return value;
  }

  [[nodiscard]] bool since(const Version& version) const { return !torch_ || *torch_ >= version; }

  // PyTorch read a C int before 2.10, then a size_t; what is beyond 63 bits in bytes no device can tell apart.
  Bytes mebibytes(std::string_view key, std::int64_t least) {
    const std::int64_t most = torch_ && *torch_ >= k2_10 ? INT64_MAX / kMebibyte : INT32_MAX;
    const std::string rule = formatted("more than {} (MiB), and at most {}", least - 1, most);
    return Bytes(integer(key, least, most, rule) * kMebibyte);
  }

  // Both bounds were "more than 20" before 2.10 and are "at least the segment size" since; 2.11 lets the size be set,
  // and what counts is the size after the whole conf has been read.
  [[nodiscard]] std::int64_t floor() const {
    if (!torch_ || *torch_ < k2_10) return 21;
    return *torch_ < k2_11 ? 20 : 1;
  }
  void judge_floors() {
    const Bytes least = config_->large_segment_size;
    if (!torch_ || *torch_ < k2_11) return;
    for (const auto& [at, value] : floored_) {
      if (value >= least) continue;
      at_ = at;
      fail(formatted("{} is {}, but must be at least {} (MiB), the size of a large segment", tokens_[at - 2].text,
                     value.value() / kMebibyte, least.value() / kMebibyte));
    }
  }
  Bytes floored(std::string_view key) {
    const std::size_t at = at_;
    const Bytes value = mebibytes(key, floor());
    floored_.emplace_back(at, value);
    return value;
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
      const std::int64_t value = power_of_two("a division of roundup_power2_divisions", true);
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

  struct Key {
    std::string_view name;
    void (ConfReader::*read)();
    Version first;          // The first version that knows it.
    bool on_device = true;  // Whether it can move a byte on the device.
  };
  static constexpr Version kAlways{0, 0, 0};
  static const std::array<Key, 18> kKeys;

  void read_option() {
    const std::size_t start = at_;
    const std::string name = word("an option");
    ++at_;
    const auto key = std::find_if(kKeys.begin(), kKeys.end(), [&](const Key& one) { return one.name == name; });
    if (key == kKeys.end()) {
      at_ = start;
      std::vector<std::string_view> known;
      for (const Key& one : kKeys) known.push_back(one.name);
      const std::string_view close = nearest(name, known);
      fail(formatted("unknown allocator option '{}'", shown(name)),
           close.empty() ? "" : formatted("did you mean \"{}\"?", close));
    }
    if (!since(key->first)) {
      at_ = start;
      fail(formatted("PyTorch {} does not know {} yet", torch_->text(), name),
           formatted("it came with {}.{}", key->first.major, key->first.minor));
    }
    expect(":");
    (this->*key->read)();
    if (key->on_device || reading_ == nullptr) return;
    std::vector<std::string>& list = reading_->without_effect;
    if (std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
  }

  void max_split() { config_->max_split_size = floored("max_split_size_mb"); }
  void non_split() { config_->max_non_split_rounding = floored("max_non_split_rounding_mb"); }
  void large_segment() { config_->large_segment_size = mebibytes("large_segment_size_mb", 11); }
  void flag() { (void)boolean(tokens_[at_ - 2].text); }
  void expandable() { config_->expandable_segments = boolean("expandable_segments"); }
  void reserve_segment() { (void)mebibytes("pinned_reserve_segment_size_mb", 1); }
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
  std::optional<Version> torch_;
  ConfReading* reading_;
  std::vector<std::pair<std::size_t, Bytes>> floored_;  // Where the value stands, and what it is.
};

constexpr std::array<ConfReader::Key, 18> ConfReader::kKeys = {{
    {"max_split_size_mb", &ConfReader::max_split, kAlways},
    {"max_non_split_rounding_mb", &ConfReader::non_split, kAlways},
    {"large_segment_size_mb", &ConfReader::large_segment, k2_11},
    {"garbage_collection_threshold", &ConfReader::threshold, kAlways},
    {"roundup_power2_divisions", &ConfReader::divisions, kAlways},
    {"expandable_segments", &ConfReader::expandable, kAlways},
    {"per_process_memory_fraction", &ConfReader::fraction, k2_10},
    {"backend", &ConfReader::backend, kAlways},
    {"pinned_num_register_threads", &ConfReader::register_threads, kAlways, false},
    {"pinned_reserve_segment_size_mb", &ConfReader::reserve_segment, k2_10, false},
    {"release_lock_on_cudamalloc", &ConfReader::flag, kAlways, false},
    {"release_lock_on_hipmalloc", &ConfReader::flag, kAlways, false},
    {"pinned_use_cuda_host_register", &ConfReader::flag, kAlways, false},
    {"pinned_use_hip_host_register", &ConfReader::flag, kAlways, false},
    {"pinned_use_background_threads", &ConfReader::flag, kAlways, false},
    {"graph_capture_record_stream_reuse", &ConfReader::flag, k2_9, false},
    {"throw_on_cudamalloc_oom", &ConfReader::flag, k2_12, false},
    {"pinned_free_catch_all", &ConfReader::flag, k2_12, false},
}};

}  // namespace

std::optional<ConfFault> apply_allocator_conf(std::string_view text, AllocatorConfig& config,
                                              std::optional<Version> torch, ConfReading* reading) {
  if (text.size() > kLongest) return ConfFault{kLongest, "an allocator conf has at most 131072 characters", {}};
  AllocatorConfig next = config;
  const AllocatorConfig defaults;
  next.max_split_size = defaults.max_split_size;
  next.garbage_collection_threshold = defaults.garbage_collection_threshold;
  next.roundup_power2_divisions = defaults.roundup_power2_divisions;
  try {
    ConfReader(text, next, torch, reading).read();
  } catch (Stop& stop) {
    return std::move(stop.fault);
  }
  config = next;
  return std::nullopt;
}

AllocatorConfig parse_allocator_conf(std::string_view text, const std::string& where, std::optional<Version> torch) {
  AllocatorConfig config;
  if (auto fault = apply_allocator_conf(text, config, torch)) {
    throw Refusal(
        std::vector<Diagnostic>{{where, 1, fault->offset + 1, std::string(text), fault->message, fault->hint}});
  }
  return config;
}

ConfPrefix conf_variable(std::string_view text, const Version& torch) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) return {};
  const std::string_view name = text.substr(0, equals);
  if (name == "PYTORCH_CUDA_ALLOC_CONF" || (name == "PYTORCH_ALLOC_CONF" && torch >= k2_10)) return {equals + 1, {}};
  if (name == "PYTORCH_ALLOC_CONF") {
    return {0,
            ConfFault{0, formatted("the CUDA allocator of PyTorch {} does not read PYTORCH_ALLOC_CONF", torch.text()),
                      "write PYTORCH_CUDA_ALLOC_CONF"}};
  }
  return {0, ConfFault{0, formatted("'{}' is no variable of the allocator", shown(name)),
                       "write the keys alone: expandable_segments:True"}};
}

std::string canonical(const AllocatorConfig& config) {
  std::string text =
      formatted("split {} rounding {} segment {} gc {} expandable {} fraction {} divisions",
                config.max_split_size.value(), config.max_non_split_rounding.value(), config.large_segment_size.value(),
                config.garbage_collection_threshold, config.expandable_segments, config.memory_fraction.value_or(1));
  for (const std::int64_t divisions : config.roundup_power2_divisions) text += formatted(" {}", divisions);
  return text;
}

}  // namespace dsplan
