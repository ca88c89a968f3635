// How a mixture's experts run, and how many tokens each is given.
#include <algorithm>
#include <charconv>
#include <numeric>

#include "core/document.h"
#include "core/format.h"
#include "core/text/split.h"
#include "core/text/whole_numbers.h"
#include "model/parts.h"
#include "planner/resolve/resolver.h"

namespace dsplan {
namespace {

constexpr std::string_view kCapacity = "capacity:";
constexpr std::string_view kCounts = "counts:";

std::optional<std::string> without_choice(const ModelSpec& model) {
  if (model.dims.experts == 0) return formatted("{} has no experts", model.name);
  const bool scattered = model.parts != nullptr && model.parts->experts.router == Router::Scattered;
  if (scattered) return formatted("each expert of {} sees every token, whoever is chosen", model.name);
  return std::nullopt;
}

void resolve_implementation(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.experts;
  if (!wished.given()) return;
  if (const auto none = without_choice(resolver.model)) {
    return resolver.fault(wished.place, formatted("experts \"{}\", but {}", *wished, *none));
  }
  if (*wished == "deepgemm" || *wished == "sonicmoe" || *wished == "scattermoe") {
    return resolver.not_modelled(wished.place, formatted("experts \"{}\", of a kernel of its own", *wished));
  }
  for (const ExpertsImplementation one :
       {ExpertsImplementation::GroupedMm, ExpertsImplementation::Loop, ExpertsImplementation::BatchedMm}) {
    if (*wished != name(one)) continue;
    resolver.training().experts = one;
    return resolver.given("experts", *wished, wished.place, "--experts");
  }
  const std::string_view meant = nearest(*wished, {"grouped_mm", "eager", "batched_mm"});
  resolver.fault(wished.place, formatted("experts \"{}\" is not known", *wished),
                 meant.empty() ? "it is one of grouped_mm, eager, batched_mm" : did_you_mean(meant));
}

// "capacity:F": the fullest experts get F times the mean, tokens * experts_per_token / experts. A cap in the sense of
// Switch Transformer drops what is above it; transformers' mixtures drop nothing, so that F is at least 1, and no
// expert gets a token twice.
std::string read_capacity(std::string_view rule, const Dimensions& dims, Routing& routing) {
  const std::string_view text = rule.substr(kCapacity.size());
  double& factor = routing.factor;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
  if (error != std::errc() || end != text.data() + text.size() || !(factor > 0)) {
    return formatted("routing \"{}\" needs a number above 0 behind capacity:", rule);
  }
  if (factor < 1) return formatted("routing \"{}\" drops tokens, and transformers' mixtures drop none", rule);
  const double most =
      static_cast<double>(dims.experts) / static_cast<double>(std::max<std::int64_t>(dims.experts_per_token, 1));
  routing.kind = Routing::Kind::Capacity;
  if (factor <= most) return {};
  return formatted(
      "routing \"{}\" gives an expert more tokens than there are: {} of {} experts for each make at most capacity:{}",
      rule, dims.experts_per_token, dims.experts, most);
}

// "counts:3,1,2/2,2,2", as a plan writes what a file said.
std::optional<std::vector<TokenCounts>> listed(std::string_view text, const Place& place) {
  std::vector<TokenCounts> rows;
  text.remove_prefix(kCounts.size());
  for (const std::string_view row : split(text, '/')) {
    rows.push_back({{}, place});
    for (const std::string_view word : split(row, ',')) {
      const std::optional<std::int64_t> count = whole_number(word);
      if (!count) return std::nullopt;
      rows.back().tokens.push_back(*count);
    }
  }
  return rows;
}

std::size_t mixtures_of(const ModelSpec& model) {
  return static_cast<std::size_t>(std::count_if(model.modules.begin(), model.modules.end(), is_mixture));
}

// A row against the model and the batch; empty: it is in order.
std::string row_fault(const std::vector<std::int64_t>& row, const Dimensions& dims, std::int64_t tokens) {
  if (static_cast<std::int64_t>(row.size()) != dims.experts) {
    return formatted("{} counts for {} experts", row.size(), dims.experts);
  }
  const std::int64_t all = tokens * dims.experts_per_token;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i] < 0) return formatted("expert {} has {} tokens", i, row[i]);
    if (row[i] > tokens) return formatted("expert {} has {} tokens, and a micro-batch has {}", i, row[i], tokens);
  }
  const std::int64_t sum = std::accumulate(row.begin(), row.end(), std::int64_t{0});
  if (sum == all) return {};
  return formatted("the counts sum to {}, and {} tokens for {} experts each are {}", sum, tokens,
                   dims.experts_per_token, all);
}

void take_counts(Resolver& resolver, const std::vector<TokenCounts>& rows, const Place& place) {
  const Training& training = resolver.training();
  const std::size_t mixtures = mixtures_of(resolver.model);
  if (!training.seq_list.empty()) {
    return resolver.fault(place, "counts of tokens beside several lengths", "a rule counts for each length");
  }
  if (rows.size() != 1 && rows.size() != mixtures) {
    return resolver.fault(rows.empty() ? place : rows.back().place,
                          formatted("{} rows of counts for {} mixtures", rows.size(), mixtures),
                          "one row for each, or one for all");
  }
  Routing& routing = resolver.training().routing;
  routing.kind = Routing::Kind::Counts;
  for (const TokenCounts& row : rows) {
    const std::string fault = row_fault(row.tokens, resolver.model.dims, training.rows() * training.seq);
    if (!fault.empty()) return resolver.fault(row.place, fault);
    routing.counts.push_back(row.tokens);
  }
}

// A rule, or what a file says.
void take_rule(Resolver& resolver, const std::string& rule, const Place& place) {
  Routing& routing = resolver.training().routing;
  if (resolver.request.token_counts.given()) return take_counts(resolver, *resolver.request.token_counts, place);
  if (rule.starts_with(kCounts)) {
    const std::optional<std::vector<TokenCounts>> rows = listed(rule, place);
    if (rows) return take_counts(resolver, *rows, place);
    return resolver.fault(place, formatted("routing \"{}\" needs whole numbers behind counts:", rule));
  }
  if (rule.starts_with(kCapacity)) {
    const std::string fault = read_capacity(rule, resolver.model.dims, routing);
    if (!fault.empty()) resolver.fault(place, fault);
    return;
  }
  if (rule == "worst") routing.kind = Routing::Kind::Worst;
  if (rule == "worst" || rule == "balanced") return;
  const std::string_view meant = nearest(rule, {"balanced", "worst", "capacity:1.5"});
  resolver.fault(place, formatted("routing \"{}\" is not known", rule),
                 meant.empty() ? "it is balanced, worst, capacity:F or a file" : did_you_mean(meant));
}

// Only a loop over the experts that are hit sees how many tokens each has (integrations/moe.py; the classes' own
// forward). Without expert parallelism no rule that drops no token moves a byte of the others.
std::string_view why_inert(ExpertsImplementation experts) {
  if (experts == ExpertsImplementation::BatchedMm) {
    return "routing moves no byte: each token has a copy of its experts' weights, whichever they are "
           "(experts_implementation \"batched_mm\"; it moves bytes of the loop over experts that are hit, \"eager\")";
  }
  return "routing moves no byte: one grouped product takes the tokens of all experts (experts_implementation "
         "\"grouped_mm\"; it moves bytes of the loop over experts that are hit, \"eager\")";
}

void resolve_routing(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.routing;
  Training& training = resolver.training();
  const bool loops = training.experts == ExpertsImplementation::Loop;
  if (!wished.given()) {
    if (loops) resolver.assumed("routing", "balanced", "each expert gets as many tokens as the next", "--routing");
    return;
  }
  if (const auto none = without_choice(resolver.model)) {
    return resolver.fault(wished.place, formatted("routing \"{}\", but {}", *wished, *none));
  }
  take_rule(resolver, *wished, wished.place);
  resolver.given("routing", name(training.routing), wished.place, "--routing");
  if (loops) return;
  training.routing = {};
  resolver.announce(wished.place, std::string(why_inert(training.experts)));
}

}  // namespace

void resolve_experts(Resolver& resolver) {
  resolve_implementation(resolver);
  resolve_routing(resolver);
}

}  // namespace dsplan
