#include "core/document.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/format.h"

namespace dsplan {

const Value* Value::find(std::string_view key) const {
  for (const Member& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

Diagnostic Document::at(std::size_t offset, std::string message, std::string hint) const {
  offset = std::min(offset, text.size());
  const std::size_t begin = offset == 0 ? 0 : text.rfind('\n', offset - 1) + 1;  // npos + 1 == 0: first line.
  const std::size_t end = std::min(text.find('\n', offset), text.size());
  const auto line =
      static_cast<std::size_t>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n'));
  // A line may be a whole file long: only the part around the fault is kept.
  const std::size_t shown = offset - begin > 2048 ? offset - 2048 : begin;
  return {path,
          line + 1,
          offset - begin + 1,
          text.substr(shown, std::min<std::size_t>(end - shown, 4096)),
          std::move(message),
          std::move(hint),
          shown - begin};
}

std::string_view describe(Value::Kind kind) {
  switch (kind) {
    case Value::Kind::Null: return "null";
    case Value::Kind::Bool: return "true or false";
    case Value::Kind::Integer: return "an integer";
    case Value::Kind::Real: return "a number";
    case Value::Kind::String: return "a string";
    case Value::Kind::Array: return "an array";
    case Value::Kind::Object: return "an object";
  }
  return "?";
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows of i - 2, i - 1 and i letters of `a`: two letters that changed places are one slip.
  std::vector<std::size_t> before, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = last[j - 1] + (a[i - 1] == b[j - 1] ? 0U : 1U);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, substituted});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  if (word.size() > 256) return {};
  std::string_view best;
  std::size_t least = std::min<std::size_t>(3, word.size());
  for (std::string_view candidate : candidates) {
    if (candidate.size() > word.size() + 2 || word.size() > candidate.size() + 2) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view nearest) {
  return nearest.empty() ? std::string() : "did you mean \"" + std::string(nearest) + "\"?";
}

ObjectReader::ObjectReader(const Document& document, const Value& object, Diagnostics& diagnostics)
    : document_(&document), object_(&object), diagnostics_(&diagnostics) {
  DSPLAN_CHECK(object.is(Value::Kind::Object), "ObjectReader over " + std::string(describe(object.kind)));
}

void ObjectReader::accept(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.push_back(key);
}

const Value* ObjectReader::find(std::string_view key) {
  accept(key);
  const Value* value = object_->find(key);
  return value == nullptr || value->is(Value::Kind::Null) ? nullptr : value;
}

void ObjectReader::fault(const Value& value, std::string message, std::string hint) {
  diagnostics_->add(document_->at(value.offset, std::move(message), std::move(hint)));
}

void ObjectReader::fault(std::string_view key, std::string message, std::string hint) {
  const Value* value = object_->find(key);
  fault(value == nullptr ? *object_ : *value, std::move(message), std::move(hint));
}

std::optional<std::int64_t> ObjectReader::integer(std::string_view key, std::int64_t least, std::int64_t most) {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  std::int64_t read = 0;
  if (value->is(Value::Kind::Integer)) {
    read = value->integer;
  } else if (value->is(Value::Kind::Real) && !value->huge && std::floor(value->real) == value->real &&
             std::abs(value->real) < 9.2e18) {
    read = static_cast<std::int64_t>(value->real);
  } else if (value->is(Value::Kind::Real) && (value->huge || std::abs(value->real) >= 9.2e18)) {
    fault(*value, formatted("\"{}\" does not fit in 63 bits", key));
    return std::nullopt;
  } else {
    fault(*value, formatted("\"{}\" must be an integer, not {}", key, describe(value->kind)));
    return std::nullopt;
  }
  if (read < least || read > most) {
    if (most == INT64_MAX) {
      fault(*value, formatted("\"{}\" must be at least {}, not {}", key, least, read));
    } else {
      fault(*value, formatted("\"{}\" must be from {} to {}, not {}", key, least, most, read));
    }
    return std::nullopt;
  }
  return read;
}

std::optional<double> ObjectReader::number(std::string_view key) {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is(Value::Kind::Integer) || value->is(Value::Kind::Real)) return value->real;
  fault(*value, formatted("\"{}\" must be a number, not {}", key, describe(value->kind)));
  return std::nullopt;
}

std::optional<bool> ObjectReader::boolean(std::string_view key) {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is(Value::Kind::Bool)) return value->boolean;
  fault(*value, formatted("\"{}\" must be true or false, not {}", key, describe(value->kind)));
  return std::nullopt;
}

std::optional<std::string> ObjectReader::string(std::string_view key) {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is(Value::Kind::String)) return value->string;
  fault(*value, formatted("\"{}\" must be a string, not {}", key, describe(value->kind)));
  return std::nullopt;
}

std::optional<std::string> ObjectReader::choice(std::string_view key, std::initializer_list<std::string_view> choices) {
  std::optional<std::string> read = string(key);
  if (!read || std::find(choices.begin(), choices.end(), *read) != choices.end()) return read;
  const std::string_view meant = nearest(*read, std::vector<std::string_view>(choices));
  fault(key, formatted("\"{}\" must be one of {}, not \"{}\"", key, joined(choices, ", "), *read), did_you_mean(meant));
  return std::nullopt;
}

const Value* ObjectReader::object(std::string_view key) {
  const Value* value = find(key);
  if (value == nullptr || value->is(Value::Kind::Object)) return value;
  fault(*value, formatted("\"{}\" must be an object, not {}", key, describe(value->kind)));
  return nullptr;
}

const Value* ObjectReader::array(std::string_view key) {
  const Value* value = find(key);
  if (value == nullptr || value->is(Value::Kind::Array)) return value;
  fault(*value, formatted("\"{}\" must be an array, not {}", key, describe(value->kind)));
  return nullptr;
}

std::int64_t ObjectReader::required_integer(std::string_view key, std::int64_t least, std::int64_t most,
                                            std::int64_t fallback) {
  if (!has(key)) {
    fault(key, formatted("\"{}\" is missing", key));
    return fallback;
  }
  return integer(key, least, most).value_or(fallback);
}

std::vector<const Member*> ObjectReader::unread() const {
  std::vector<const Member*> rest;
  for (const Member& member : object_->members) {
    if (std::find(known_.begin(), known_.end(), member.key) == known_.end()) rest.push_back(&member);
  }
  return rest;
}

void ObjectReader::refuse_unread(std::string_view what) {
  for (const Member* member : unread()) {
    const std::string_view meant = nearest(member->key, known_);
    diagnostics_->add(document_->at(member->key_offset, formatted("unknown key \"{}\" in {}", member->key, what),
                                    did_you_mean(meant)));
  }
}

}  // namespace dsplan
