// The allocator's conf, by PyTorch version, and when its waiting frees complete.
#include "planner/resolve/resolver.h"

#include "core/format.h"

namespace dsplan {
namespace {

// At the character of the conf: after a file's opening quote, or in a line of its own under the option's name.
Diagnostic at_character(const Place& place, const std::string& conf, const ConfFault& fault) {
  if (place.line == 0) return {place.path, 1, fault.offset + 1, conf, fault.message, fault.hint};
  Diagnostic diagnostic = place.says(fault.message, fault.hint);
  const std::string_view line = place.source_line;
  const bool as_written = place.column <= line.size() && line.substr(place.column).starts_with(conf);
  if (as_written) diagnostic.column += 1 + fault.offset;
  return diagnostic;
}

void resolve_conf(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.alloc_conf;
  if (!wished.given() || wished->empty()) return;
  const Version& torch = resolver.training().torch;
  const ConfPrefix prefix = conf_variable(*wished, torch);
  if (prefix.fault) return resolver.diagnostics.add(at_character(wished.place, *wished, *prefix.fault));
  const std::string keys = wished->substr(prefix.length);
  ConfReading reading;
  if (auto fault = apply_allocator_conf(keys, resolver.job.allocator, torch, &reading)) {
    fault->offset += prefix.length;
    return resolver.diagnostics.add(at_character(wished.place, *wished, *fault));
  }
  resolver.job.allocator_conf = keys;
  if (!keys.empty()) resolver.given("allocator conf", keys, wished.place, "--alloc-conf");
  for (const std::string& key : reading.without_effect) {
    resolver.notice(Notice::Kind::Inert, wished.place, formatted("{} moves no byte on the device", key));
  }
  // PyTorch collects garbage only under a limit (garbage_collect_cached_blocks: a fraction must have been set).
  const AllocatorConfig& conf = resolver.job.allocator;
  if (conf.garbage_collection_threshold > 0 && conf.memory_fraction.value_or(1) >= 1) {
    resolver.notice(Notice::Kind::Inert, wished.place,
                    "garbage_collection_threshold has no effect here: it needs a memory fraction below 1");
  }
}

void resolve_stream_frees(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.stream_frees;
  if (!wished.given()) return;
  if (*wished != name(StreamFrees::AtSync) && *wished != name(StreamFrees::Immediate)) {
    return resolver.fault(wished.place, formatted("stream-frees \"{}\" is neither at-sync nor immediate", *wished));
  }
  if (*wished == name(StreamFrees::Immediate)) resolver.job.stream_frees = StreamFrees::Immediate;
  resolver.given("stream frees", *wished, wished.place, "--stream-frees");
}

void resolve_placement(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.placement;
  if (!wished.given()) return;
  if (*wished != "caching" && *wished != "planned") {
    return resolver.fault(wished.place, formatted("placement \"{}\" is neither caching nor planned", *wished));
  }
  resolver.given("placement", *wished, wished.place, "--placement");
  if (*wished == "caching") return;
  resolver.job.placement = PlacementKind::Planned;
  if (!resolver.job.allocator_conf.empty()) {
    resolver.notice(Notice::Kind::Inert, resolver.request.alloc_conf.place,
                    "the allocator's conf decides nothing about a planned arena, only what it is compared with");
  }
}

}  // namespace

void resolve_allocator(Resolver& resolver) {
  resolve_conf(resolver);
  resolve_stream_frees(resolver);
  resolve_placement(resolver);
}

}  // namespace dsplan
