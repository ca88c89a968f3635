// Values of inert keys against the types of core/dialects/key_types.cpp: what a program stops at is no configuration.
#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "io/deepspeed_keys.h"
#include "io/dialects/dialect_reader.h"
#include "io/text.h"

namespace dsplan::detail {
namespace {

bool has_letter(std::string_view type, char letter) {
  return type.substr(0, type.find('=')).find(letter) != std::string_view::npos;
}

// PyYAML reads 1e-5 as a text, and argparse makes a number of any. Python's true and false are numbers.
bool is_number(const Spoken& said, bool whole) {
  const bool text = said.value.is(Value::Kind::String);
  if (text && !said.text && said.value.string.find_first_of("eE") == std::string::npos) return false;
  if (said.value.is(Value::Kind::Bool)) return true;
  const std::optional<double> number = lax_number(said.value);
  return number && (!whole || std::floor(*number) == *number);
}

bool is_of_type(const Spoken& said, std::string_view type) {
  const Value& value = said.value;
  const bool text = value.is(Value::Kind::String);
  const bool scalar = !value.is(Value::Kind::Array) && !value.is(Value::Kind::Object);
  const bool bit = value.is(Value::Kind::Integer) && (value.integer == 0 || value.integer == 1);
  const bool flag = value.is(Value::Kind::Bool) || bit || (said.text && text && lax_boolean(value));
  if (has_letter(type, 'b') && flag) return true;
  if (has_letter(type, 'f') && is_number(said, false)) return true;
  if (has_letter(type, 'i') && is_number(said, true)) return true;
  if (has_letter(type, 'l') && (text || value.is(Value::Kind::Array))) return true;
  if (has_letter(type, 'd') && (value.is(Value::Kind::Object) || (text && value.string.starts_with("{")))) return true;
  return has_letter(type, 's') && (text || (scalar && !has_letter(type, 'l')));  // A name may be a number.
}

// "a number or a flag"
std::string in_words(std::string_view type) {
  constexpr std::pair<char, std::string_view> kWords[] = {{'b', "true or false"}, {'i', "an integer"},
                                                          {'f', "a number"},      {'s', "a string"},
                                                          {'l', "a list"},        {'d', "a dictionary"}};
  std::vector<std::string_view> words;
  for (const auto& [letter, word] : kWords) {
    if (has_letter(type, letter) && (letter != 'i' || !has_letter(type, 'f'))) words.push_back(word);
  }
  return formatted("{}", joined(words, " or "));
}

// A line may be copied from a script: variables of its shell, and words behind an option that are not the option's.
bool is_of_a_shell(const Spoken& said) {
  const bool variable = said.value.is(Value::Kind::String) && said.value.string.find('$') != std::string::npos;
  return said.file == nullptr && (variable || said.value.is(Value::Kind::Array));
}

}  // namespace

void judge_type(const Spoken& said, Diagnostics& faults) {
  const std::string_view type = said.key.type;
  if (type.empty() || said.value.is(Value::Kind::Null) || is_of_type(said, type) || is_of_a_shell(said)) return;
  const std::size_t equals = type.find('=');
  if (equals == std::string_view::npos) return wrong(said, in_words(type), faults);
  const std::vector<std::string_view> words = listed(type.substr(equals + 1));
  const bool off = said.value.is(Value::Kind::Bool) && !said.value.boolean;  // What YAML makes of a bare no.
  const std::string text = off ? "no" : text_of(said.value);
  if (std::find(words.begin(), words.end(), text) != words.end()) return;
  const std::string_view near = nearest(text, words);
  faults.add(said.place.says(formatted("\"{}\" is no {}", text, said.written),
                             near.empty() ? formatted("it is one of {}", joined(words, ", ")) : did_you_mean(near)));
}

}  // namespace dsplan::detail
