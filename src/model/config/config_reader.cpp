#include "model/config/config_reader.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/format.h"
#include "model/families.h"

namespace dsplan {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 23> kActivations{{
    {"gelu", "GELUActivation"},
    {"gelu_10", "ClippedGELUActivation"},
    {"gelu_fast", "FastGELUActivation"},
    {"gelu_new", "NewGELUActivation"},
    {"gelu_python", "GELUActivation"},
    {"gelu_pytorch_tanh", "GELUTanh"},
    {"gelu_python_tanh", "GELUTanh"},
    {"gelu_accurate", "AccurateGELUActivation"},
    {"hardswish", "Hardswish"},
    {"laplace", "LaplaceActivation"},
    {"leaky_relu", "LeakyReLU"},
    {"linear", "LinearActivation"},
    {"mish", "MishActivation"},
    {"quick_gelu", "QuickGELUActivation"},
    {"relu", "ReLU"},
    {"relu2", "ReLUSquaredActivation"},
    {"relu6", "ReLU6"},
    {"sigmoid", "Sigmoid"},
    {"silu", "SiLUActivation"},
    {"sqrtsoftplus", "SqrtSoftplusActivation"},
    {"swish", "SiLU"},
    {"tanh", "Tanh"},
    {"xielu", "XIELUActivation"},
}};

std::vector<std::string_view> activation_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, type] : kActivations) {
    names.push_back(name);
  }
  return names;
}

}  // namespace

std::string_view activation_class(std::string_view name) {
  for (const auto& [known, type] : kActivations) {
    if (known == name) return type;
  }
  return {};
}

ConfigReader::ConfigReader(const Document& config) : object(config, config.root, diagnostics_), config_(&config) {}

bool ConfigReader::is_null(std::string_view key) const {
  const Value* value = root().find(key);
  return value != nullptr && value->is(Value::Kind::Null);
}

bool ConfigReader::sound(std::string_view key) const {
  return std::find(faulty_.begin(), faulty_.end(), key) == faulty_.end();
}

void ConfigReader::fault(std::string_view key, std::string message, std::string hint) {
  faulty_.emplace_back(key);
  object.fault(key, std::move(message), std::move(hint));
}

void ConfigReader::fault(const Value& value, std::string message, std::string hint) {
  object.fault(value, std::move(message), std::move(hint));
}

void ConfigReader::refuse(std::string_view key, std::string message, std::string hint) const {
  const Value* value = root().find(key);
  throw Refusal({config_->at((value == nullptr ? root() : *value).offset, std::move(message), std::move(hint))});
}

void ConfigReader::refuse_largest(std::string message) const {
  throw Refusal({config_->at((largest_ == nullptr ? root() : *largest_).offset, std::move(message))});
}

void ConfigReader::check_tensors(std::int64_t tensors) const {
  if (tensors <= kMostTensors) return;
  throw Refusal({config_->at((layers_value_ == nullptr ? root() : *layers_value_).offset,
                             formatted("the model has more than {} tensors", grouped(kMostTensors)))});
}

void ConfigReader::throw_if_any() const {
  if (diagnostics_.count() > diagnostics_.list().size()) diagnostics_.throw_if_any();
  if (!diagnostics_.any()) return;
  std::vector<Diagnostic> faults = diagnostics_.list();
  std::stable_sort(faults.begin(), faults.end(), [](const Diagnostic& a, const Diagnostic& b) {
    return std::pair(a.line, a.column) < std::pair(b.line, b.column);
  });
  throw Refusal(std::move(faults));
}

bool take_faults(ConfigReader& inner, ConfigReader& whole) {
  const bool any = inner.diagnostics_.any();
  for (const Diagnostic& one : inner.diagnostics_.list()) whole.diagnostics_.add(one);
  inner.diagnostics_ = {};
  return any;
}

void ConfigReader::refuse_null(std::string_view key, std::string_view wanted) {
  if (is_null(key)) fault(key, formatted("\"{}\" must be {}, not null", key, wanted));
}

std::string_view ConfigReader::spelled(std::string_view key, std::string_view alias) {
  if (alias.empty()) return key;
  object.accept(key);
  object.accept(alias);
  const Value* own = root().find(key);
  const Value* other = root().find(alias);
  if (other == nullptr) return key;
  if (own == nullptr) return alias;
  if (own->kind != other->kind || own->integer != other->integer) {
    fault(alias, formatted("\"{}\" contradicts \"{}\": both name the same attribute", alias, key));
  }
  return key;
}

std::optional<std::int64_t> ConfigReader::integer(std::string_view key, std::int64_t least, std::int64_t most) {
  const std::size_t before = diagnostics_.count();
  const std::optional<std::int64_t> read = object.integer(key, least, most);
  if (diagnostics_.count() != before) faulty_.emplace_back(key);
  const Value* value = root().find(key);
  if (read && (largest_ == nullptr || largest_->real < value->real)) largest_ = value;
  return read;
}

std::int64_t ConfigReader::size(std::string_view key, std::int64_t fallback, std::string_view alias) {
  const std::string_view there = spelled(key, alias);
  refuse_null(there, "an integer");
  const std::int64_t read = integer(there, 1, INT64_MAX).value_or(fallback);
  if (there != key && !sound(there)) faulty_.emplace_back(key);
  return read;
}

std::int64_t ConfigReader::layer_count(std::string_view key, std::int64_t fallback, std::string_view alias) {
  const std::string_view there = spelled(key, alias);
  refuse_null(there, "an integer");
  layers_ = integer(there, 1, kMostLayers).value_or(fallback);
  layers_value_ = find(there);
  return layers_;
}

std::optional<std::int64_t> ConfigReader::maybe_size(std::string_view key, std::optional<std::int64_t> fallback) {
  object.accept(key);
  if (is_null(key)) return std::nullopt;
  const std::optional<std::int64_t> read = integer(key, 1, INT64_MAX);
  return read ? read : fallback;
}

std::int64_t ConfigReader::count(std::string_view key, std::int64_t fallback, std::string_view alias) {
  const std::string_view there = spelled(key, alias);
  refuse_null(there, "an integer");
  const std::int64_t read = integer(there, 0, INT64_MAX).value_or(fallback);
  if (there != key && !sound(there)) faulty_.emplace_back(key);
  return read;
}

bool ConfigReader::flag(std::string_view key, bool fallback) {
  refuse_null(key, "true or false");
  return object.boolean(key).value_or(fallback);
}

double ConfigReader::probability(std::string_view key, double fallback) {
  refuse_null(key, "a number");
  const std::optional<double> read = object.number(key);
  if (read && !(*read >= 0 && *read <= 1)) {
    fault(key, formatted("\"{}\" must be from 0 to 1, not {}", key, *read));
    return fallback;
  }
  return read.value_or(fallback);
}

std::optional<double> ConfigReader::maybe_number(std::string_view key, std::optional<double> fallback) {
  object.accept(key);
  if (is_null(key)) return std::nullopt;
  const std::optional<double> read = object.number(key);
  return read ? read : fallback;
}

std::optional<std::string> ConfigReader::maybe_string(std::string_view key) { return object.string(key); }

std::string ConfigReader::activation(std::string_view key, std::string_view fallback) {
  refuse_null(key, "a string");
  const std::optional<std::string> read = object.string(key);
  if (!read) return std::string(fallback);
  if (*read == "prelu" || (*read == "xielu" && fallback != "xielu")) {
    fault(key, formatted("activation \"{}\" has parameters of its own and is not modelled yet", *read));
    return std::string(fallback);
  }
  if (activation_class(*read).empty()) {
    const std::string_view meant = nearest(*read, activation_names());
    fault(key, formatted("\"{}\" names no known activation: \"{}\"", key, *read), did_you_mean(meant));
    return std::string(fallback);
  }
  return *read;
}

std::vector<std::int64_t> ConfigReader::indices(std::string_view key, std::int64_t layers) {
  std::vector<std::int64_t> read;
  const Value* list = object.array(key);
  if (list == nullptr) return read;
  for (const Value& item : list->items) {
    if (!item.is(Value::Kind::Integer) || item.integer < 0 || item.integer >= layers) {
      fault(item, formatted("\"{}\" must list layers from 0 to {}", key, layers - 1));
    } else {
      read.push_back(item.integer);
    }
  }
  return read;
}

std::optional<DType> ConfigReader::dtype() {
  const std::string_view key = find("dtype") != nullptr ? "dtype" : "torch_dtype";
  std::optional<std::string> read = object.string(key);
  if (!read || *read == "auto") return std::nullopt;
  const std::string_view bare = read->starts_with("torch.") ? std::string_view(*read).substr(6) : *read;
  if (bare == "float64") return DType::Float64;
  if (bare == "float32") return DType::Float32;
  if (bare == "float16") return DType::Float16;
  if (bare == "bfloat16") return DType::BFloat16;
  const std::string_view meant = nearest(bare, {"bfloat16", "float16", "float32", "float64"});
  fault(key, formatted("\"{}\" must be one of float64, float32, float16, bfloat16, not \"{}\"", key, *read),
        did_you_mean(meant));
  return std::nullopt;
}

double ConfigReader::rotary_share(std::string_view key, double fallback) {
  const std::optional<double> read = object.number(key);  // phi3 as transformers 5 saves it says both.
  for (const std::string_view holder : {"rope_parameters", "rope_scaling"}) {
    const Value* rope = find(holder);
    if (rope == nullptr || !rope->is(Value::Kind::Object)) continue;
    const Value* share = rope->find("partial_rotary_factor");
    if (share == nullptr) continue;
    const bool numeric = share->is(Value::Kind::Real) || share->is(Value::Kind::Integer);
    if (numeric && share->real > 0 && share->real <= 1) return share->real;
    fault(*share, "\"partial_rotary_factor\" must be a number above 0 and at most 1");
    return fallback;
  }
  if (read && !(*read > 0 && *read <= 1)) {
    fault(key, formatted("\"{}\" must be above 0 and at most 1, not {}", key, *read));
    return fallback;
  }
  return read.value_or(fallback);
}

double ConfigReader::rotary_base(double fallback) {
  for (const std::string_view holder : {"rope_parameters", "rope_scaling"}) {
    const Value* rope = find(holder);
    if (rope == nullptr || !rope->is(Value::Kind::Object)) continue;
    const Value* base = rope->find("rope_theta");
    if (base != nullptr && (base->is(Value::Kind::Real) || base->is(Value::Kind::Integer))) return base->real;
  }
  const Value* base = find("rope_theta");
  const bool numeric = base != nullptr && (base->is(Value::Kind::Real) || base->is(Value::Kind::Integer));
  return numeric ? base->real : fallback;  // No byte depends on it: nothing is refused for it.
}

void ConfigReader::require_divides(std::string_view part_key, std::int64_t part, std::string_view whole_key,
                                   std::int64_t whole) {
  if (!sound(part_key) || !sound(whole_key) || whole % part == 0) return;
  const std::string_view origin = find(part_key) == nullptr ? " by default" : "";
  const std::string_view whole_origin = find(whole_key) == nullptr ? " (the default)" : "";
  fault(part_key, formatted("\"{}\" is {}{}, which does not divide \"{}\" = {}{}", part_key, part, origin, whole_key,
                            whole, whole_origin));
}

void ConfigReader::require_at_most(std::string_view part_key, std::int64_t part, std::string_view whole_key,
                                   std::int64_t whole) {
  if (!sound(part_key) || !sound(whole_key) || part <= whole) return;
  fault(part_key, formatted("\"{}\" is {}, more than \"{}\" = {}", part_key, part, whole_key, whole));
}

std::int64_t ConfigReader::times(std::int64_t a, std::int64_t b) const {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    refuse_largest(formatted("a size overflows 63 bits: {} * {}", a, b));
  }
  return product;
}

std::int64_t ConfigReader::plus(std::int64_t a, std::int64_t b) const {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) refuse_largest(formatted("a size overflows 63 bits: {} + {}", a, b));
  return sum;
}

std::int64_t read_label_count(ConfigReader& config) {
  const Value* names = config.find("id2label");
  if (names == nullptr) return config.count("num_labels", 2);
  if (!names->is(Value::Kind::Object)) {
    config.fault(*names, formatted("\"id2label\" must be an object, not {}", describe(names->kind)));
    return 2;
  }
  return static_cast<std::int64_t>(names->members.size());
}

bool read_picture_classifier(ConfigReader& config, std::string_view prefix) {
  const Value* classes = config.find("architectures");
  if (classes == nullptr || !classes->is(Value::Kind::Array) || classes->items.empty()) return true;
  const std::string body = formatted("{}Model", prefix);
  const std::string classifier = formatted("{}ForImageClassification", prefix);
  const Value& named = classes->items.front();
  if (named.string != body && named.string != classifier) {
    config.fault(named, formatted("\"{}\" is not modelled yet; {} and {} are", named.string, classifier, body));
  }
  return named.string != body;
}

std::optional<std::string> read_problem_type(ConfigReader& config, std::int64_t labels) {
  std::optional<std::string> problem = config.maybe_string("problem_type");
  const std::string_view usual = labels == 1 ? "regression" : "single_label_classification";
  if (problem && *problem != usual) {
    config.gaps.push_back({config.find("problem_type"), "problem_type", "another loss than that of one class"});
  }
  return problem;
}

}  // namespace dsplan
