#include "io/dialects/model_name.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/format.h"
#include "io/dialects/dialect_reader.h"
#include "io/locate.h"

namespace dsplan {
namespace {

std::optional<std::string> bundled_called(const std::string& name) {
  if (is_bundled(Bundled::Model, name)) return name;
  if (std::string by_id = model_of_the_hub(name); !by_id.empty()) return by_id;
  const std::string words = words_of_model(name);
  for (const std::string& one : list_bundled(Bundled::Model)) {
    if (words_of_model(one) == words) return one;
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
  return words_of_model(a) == words_of_model(b);
}

bool is_path(const std::string& name) {
  return name.starts_with('/') || name.starts_with('.') || name.starts_with('~') ||
         std::count(name.begin(), name.end(), '/') > 1;
}

bool are_two_models(const std::string& a, const std::string& b) {
  const bool unseen = (is_path(a) && !is_here(a)) || (is_path(b) && !is_here(b));
  return !unseen && !are_one(a, b);
}

void refuse_two(std::string_view what, const Setting<std::string>& below, const Setting<std::string>& above,
                Diagnostics& faults) {
  faults.add(above.place.says(formatted("this {} {}, and {} {}", what, *above, below.place.text(), *below),
                              "name files of one job"));
}

}  // namespace

Said of_one_job(const Said& below, const Said& above) {
  Diagnostics faults;
  const ForeignInput& under = below.foreign;
  const ForeignInput& over = above.foreign;
  const auto differ = [](const Setting<std::string>& a, const Setting<std::string>& b) {
    return a.given() && b.given() && *a != *b;
  };
  if (under.model.given() && over.model.given() && are_two_models(*under.model, *over.model)) {
    refuse_two("names the model", under.model, over.model, faults);
  }
  if (differ(under.program, over.program)) {
    refuse_two("is for the program", under.program, over.program, faults);
  } else if (differ(under.trainer, over.trainer)) {
    refuse_two("asks for the trainer", under.trainer, over.trainer, faults);
  }
  faults.throw_if_any();
  return overlay(below, above);
}

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
  if (is_path(*named) && !is_here(*named)) {
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
