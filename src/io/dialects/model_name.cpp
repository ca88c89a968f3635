#include "io/dialects/model_name.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "core/format.h"
#include "core/text/letters.h"
#include "io/dialects/dialect_reader.h"
#include "io/locate.h"

namespace dsplan {
namespace {

// "meta-llama/Meta-Llama-3.1-8B-Instruct" and "llama-3.1-8b" are llama318b: the owner, and what a checkpoint was
// trained for, are no part of an architecture's name.
std::string bare(std::string_view name) {
  while (name.ends_with('/')) name.remove_suffix(1);
  name.remove_prefix(name.rfind('/') + 1);
  std::string word;
  std::vector<std::string> words;
  for (const char c : std::string(name) + "-") {
    const char lower = in_lower_case(c);
    const bool kept = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9');
    if (kept || lower == '.') {
      if (kept) word += lower;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  constexpr std::array<std::string_view, 7> kAside = {"meta", "hf", "instruct", "chat", "it", "base", "json"};
  std::string all;
  for (const std::string& one : words) {
    if (std::find(kAside.begin(), kAside.end(), one) == kAside.end()) all += one;
  }
  return all;
}

std::optional<std::string> bundled_called(const std::string& name) {
  if (is_bundled(Bundled::Model, name)) return name;
  for (const std::string& one : list_bundled(Bundled::Model)) {
    if (bare(one) == bare(name)) return one;
  }
  return std::nullopt;
}

bool is_here(const std::string& path) {
  std::error_code failed;
  return std::filesystem::exists(path, failed);
}

// Two names of one model: one bundled model, one file, or the same words.
bool are_one(const std::string& a, const std::string& b) {
  const std::optional<std::string> bundled = bundled_called(a);
  if (bundled && bundled == bundled_called(b)) return true;
  std::error_code failed;
  if (is_here(a) && is_here(b)) return std::filesystem::equivalent(a, b, failed);
  return bare(a) == bare(b);
}

}  // namespace

std::string agreed_model(const std::string& argument, const Setting<std::string>& named, std::vector<Notice>& notices) {
  if (argument.empty() && !named.given()) {
    throw Refusal("dsplan", "MODEL is missing", "`dsplan show models` lists the bundled ones");
  }
  if (argument.empty()) {
    if (is_here(*named)) return *named;
    const std::optional<std::string> bundled = bundled_called(*named);
    if (bundled && *bundled != *named) {
      notices.push_back({Notice::Kind::Announcement,
                         named.place,
                         formatted("\"{}\" is taken for the bundled {}", *named, *bundled),
                         {}});
    }
    return bundled.value_or(*named);
  }
  if (!named.given() || are_one(argument, *named)) return argument;
  const bool path = named->starts_with('/') || named->starts_with('.') || named->starts_with('~') ||
                    std::count(named->begin(), named->end(), '/') > 1;
  if (path && !is_here(*named)) {
    notices.push_back({Notice::Kind::Announcement,
                       named.place,
                       formatted("\"{}\" is not here and cannot be compared; MODEL is {}", *named, argument),
                       {}});
    return argument;
  }
  throw Refusal({named.place.says(formatted("this names {}, and MODEL is {}", *named, argument),
                                  "leave MODEL out, or name the same")});
}

}  // namespace dsplan

namespace dsplan::detail {

// Which model torchtitan's name and flavor are (torchtitan 0.2.2, models/*/__init__.py; 0.1.0 has llama3 alone).
void name_torchtitan_model(ForeignInput& foreign, Request& request) {
  struct Flavors {
    std::string_view name;
    std::string_view flavors;
    std::string_view model;  // Of which the flavor is the end.
  };
  constexpr Flavors kFlavors[] = {{"llama3", "8B|70B|405B", "Llama-3.1-"},
                                  {"qwen3", "0.6B|1.7B|4B|8B|14B|32B", "Qwen3-"}};
  const std::string family = foreign.model.value_or("llama3");
  const std::string flavor = foreign.flavor.value_or("debugmodel");
  if (family == "llama3" && flavor == "debugmodel") {
    foreign.model = {"torchtitan-debugmodel", foreign.flavor.given() ? foreign.flavor.place : foreign.program.place};
    return;
  }
  for (const Flavors& one : kFlavors) {
    if (one.name != family || !one_of(flavor, one.flavors)) continue;
    foreign.model = {std::string(one.model) + flavor, foreign.flavor.place};
    return;
  }
  const Place place = foreign.flavor.given() ? foreign.flavor.place : foreign.program.place;
  foreign.model = {};
  request.not_modelled.push_back(
      {place, When::Always, "model.flavor", formatted("torchtitan's {} \"{}\"", family, flavor)});
}

}  // namespace dsplan::detail
