#include "report/page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "core/format.h"
#include "io/json_text.h"
#include "report/cells.h"
#include "report/page/markup.h"
#include "report/page/measured.h"
#include "report/page_parts.h"

namespace dsplan {

std::string in_html(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      default: safe += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return safe;
}

namespace {

using detail::spaced;

constexpr std::size_t kMostFrames = 20'000;
constexpr std::size_t kMomentsOfView = 500;

std::string size_or_unknown(std::optional<Bytes> bytes) { return bytes ? human(*bytes) : "unknown"; }

// Texts that stand once and are meant by their places.
class Texts {
 public:
  std::size_t place(const std::string& text) {
    const auto [found, fresh] = places_.try_emplace(text, texts_.size());
    if (fresh) texts_.push_back(text);
    return found->second;
  }
  [[nodiscard]] const std::vector<std::string>& all() const { return texts_; }

 private:
  std::map<std::string, std::size_t> places_;
  std::vector<std::string> texts_;
};

// Of the moments of a chart, and of its end: ten millionths of a second since the one before.
class AxisTicks {
 public:
  explicit AxisTicks(const Timeline& timeline) : timeline_(timeline) {}
  void tick(std::size_t event) {
    if (!timeline_.clock) return;
    const std::int64_t now = std::llround(timeline_.clock->at[event] * 1e7);
    list_.push_back(now - before_);
    before_ = now;
  }
  [[nodiscard]] Json take() {
    if (!timeline_.clock) return nullptr;
    tick(timeline_.events);
    return Json(std::move(list_));
  }

 private:
  const Timeline& timeline_;
  std::vector<std::int64_t> list_;
  std::int64_t before_ = 0;
};

// The moments of a schedule, as page.js reads them.
class Frames {
 public:
  explicit Frames(const PageInput& input) : input_(input), ticks_(input.timeline) {
    const std::vector<TimelinePoint>& points = input.timeline.points;
    const std::size_t together = points.size() / kMostFrames + 1;
    for (std::size_t begin = 0; begin < points.size(); begin += together) {
      const std::size_t end = std::min(points.size(), begin + together);
      std::size_t most = begin;
      for (std::size_t i = begin; i < end; ++i) {
        if (points[i].by_role.total() > points[most].by_role.total()) most = i;
      }
      add(begin, most + 1);
      if (most + 1 < end) add(most + 1, end);
    }
    add_modules();
  }

  void put(Json& page) {
    page.set("clock", ticks_.take());
    page.set("labels", labels_.all());
    page.set("modules", modules_.all());
    page.set("groups", groups_);
    page.set("frames", moments_);
    page.set("slices", slices_);
  }

 private:
  using JsonNumbers = std::vector<std::int64_t>;

  std::int64_t group_of(const Buffer& buffer) {
    const ModuleId module =
        buffer.parameter == kNone ? buffer.module : input_.model.parameter_at(buffer.parameter).module;
    const auto [found, fresh] =
        known_.try_emplace({std::string_view(buffer.label), module, buffer.role}, known_.size());
    if (fresh) {
      const std::string path = module == kNone ? "" : input_.model.module_at(module).path;
      groups_.push_back(static_cast<std::int64_t>(labels_.place(buffer.label)));
      groups_.push_back(static_cast<std::int64_t>(modules_.place(path)));
      groups_.push_back(static_cast<std::int64_t>(buffer.role));
    }
    return static_cast<std::int64_t>(found->second);
  }

  // What [begin, end) changes altogether, as one moment.
  void add(std::size_t begin, std::size_t end) {
    std::map<std::int64_t, Bytes> changes;
    for (std::size_t i = begin; i < end; ++i) {
      const TimelinePoint& point = input_.timeline.points[i];
      if (point.buffer == kNoBuffer) continue;
      changes[group_of(input_.schedule.buffers[point.buffer])] += point.change;
    }
    std::erase_if(changes, [](const auto& change) { return change.second == Bytes(0); });
    const TimelinePoint& last = input_.timeline.points[end - 1];
    moments_.push_back(static_cast<std::int64_t>(last.event - event_));
    moments_.push_back(static_cast<std::int64_t>(changes.size()));
    for (const auto& [group, bytes] : changes) {
      moments_.push_back(group);
      moments_.push_back(bytes.value());
    }
    moments_.push_back((last.reserved - reserved_).value());
    ticks_.tick(last.event);
    event_ = last.event;
    reserved_ = last.reserved;
  }

  void add_modules() {
    for (const TimelineSlice& slice : input_.timeline.slices) {
      if (slice.kind != TimelineSlice::Kind::Module && slice.kind != TimelineSlice::Kind::Recomputation) continue;
      slices_.push_back(static_cast<std::int64_t>(slice.begin));
      slices_.push_back(static_cast<std::int64_t>(slice.end - slice.begin));
      slices_.push_back(static_cast<std::int64_t>(modules_.place(slice.name)));
    }
  }

  const PageInput& input_;
  AxisTicks ticks_;
  Texts labels_;
  Texts modules_;
  std::map<std::tuple<std::string_view, ModuleId, Role>, std::size_t> known_;
  JsonNumbers groups_;
  JsonNumbers moments_;
  JsonNumbers slices_;
  std::size_t event_ = 0;
  Bytes reserved_;
};

Json slices_of(const Timeline& timeline, TimelineSlice::Kind kind) {
  Json list = Json::array();
  for (const TimelineSlice& slice : timeline.slices) {
    if (slice.kind == kind) list.push_back(Json::array({slice.name, slice.begin, slice.end}));
  }
  return list;
}

// `<` never stands in it, so that no text of a user ends the element that it stands in.
std::string in_script(const Json& value) {
  std::string text;
  for (const char c : json_text(value)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

// What the chart is drawn in, beside the levels themselves.
Json axes_of(const PageInput& input) {
  return {{"events", input.timeline.events},
          {"limit", input.limit},
          {"over", input.over},
          {"phases", slices_of(input.timeline, TimelineSlice::Kind::Phase)},
          {"passes", slices_of(input.timeline, TimelineSlice::Kind::Pass)}};
}

std::string data_of(const PageInput& input) {
  Json roles = Json::array();
  for (std::size_t i = 0; i < kRoles; ++i) roles.push_back(name(static_cast<Role>(i)));
  Json page = axes_of(input);
  page.set("roles", std::move(roles));
  Frames(input).put(page);
  return in_script(page);
}

// For each moment: the events since the one before, and how each role and what is reserved changed.
void put_levels(const Timeline& timeline, Json& view) {
  const std::vector<TimelinePoint>& points = timeline.points;
  const std::size_t together = points.size() / kMomentsOfView + 1;
  std::vector<std::int64_t> numbers;
  AxisTicks ticks(timeline);
  TimelinePoint before;
  for (std::size_t begin = 0; begin < points.size(); begin += together) {
    const std::size_t end = std::min(points.size(), begin + together);
    const auto highest = std::max_element(
        points.begin() + static_cast<std::ptrdiff_t>(begin), points.begin() + static_cast<std::ptrdiff_t>(end),
        [](const TimelinePoint& a, const TimelinePoint& b) { return a.by_role.total() < b.by_role.total(); });
    numbers.push_back(static_cast<std::int64_t>(highest->event - before.event));
    for (std::size_t i = 0; i < kRoles; ++i) {
      numbers.push_back((highest->by_role.bytes[i] - before.by_role.bytes[i]).value());
    }
    numbers.push_back((highest->reserved - before.reserved).value());
    ticks.tick(highest->event);
    before = *highest;
  }
  view.set("levels", std::move(numbers));
  view.set("clock", ticks.take());
}

std::string card(std::string_view title, std::string_view figure, std::string_view more, std::string_view kind = "") {
  return formatted(
      "<div class=\"card\"><span class=\"soft\">{}</span><b class=\"{}\">{}</b><span class=\"soft\">{}</span></div>\n",
      in_html(title), kind, in_html(figure), in_html(more));
}

std::string_view css_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::Fits: return "good";
    case Verdict::Tight:
    case Verdict::FitsWithRetries: return "warn";
    case Verdict::DoesNotFit: return "bad";
    case Verdict::Unknown: return "soft";
  }
  return "";
}

std::string seconds_text(double seconds) {
  return seconds < 1 ? formatted("{:.0f} ms", seconds * 1000) : formatted("{:.2f} s", seconds);
}

bool it_fits(Verdict verdict) {
  return verdict == Verdict::Fits || verdict == Verdict::Tight || verdict == Verdict::FitsWithRetries;
}

// Of the changes that fit, the fastest; nullptr where the job fits as it is, or none does.
const PageChange* fastest_fix(const PageInput& input) {
  if (it_fits(input.prediction.verdict)) return nullptr;
  const PageChange* best = nullptr;
  for (const PageChange& change : input.changes) {
    if (!it_fits(change.verdict)) continue;
    const bool faster = best == nullptr || (change.seconds && (!best->seconds || *change.seconds < *best->seconds));
    if (faster) best = &change;
  }
  return best;
}

std::string largest_card(const Peak& peak) {
  std::array<std::size_t, kRoles> order{};
  for (std::size_t i = 0; i < kRoles; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return peak.by_role.bytes[a] > peak.by_role.bytes[b]; });
  std::string rest;
  for (std::size_t i = 1; i < 4 && peak.by_role.bytes[order[i]] > Bytes(0); ++i) {
    rest += formatted("{}{} {}", rest.empty() ? "" : ", ", spaced(name(static_cast<Role>(order[i]))),
                      human(peak.by_role.bytes[order[i]]));
  }
  return card("largest at the peak",
              formatted("{} {}", spaced(name(static_cast<Role>(order[0]))), human(peak.by_role.bytes[order[0]])), rest);
}

// What it takes, against what there is.
struct Need {
  const char* title;
  std::string figure;
  std::string against;
};

// What a job that fits takes is more than it needs: the allocator keeps what it once had. As the first screen says it.
Need need_of(const Prediction& p) {
  const bool takes = it_fits(p.verdict) && p.retries == 0 && p.peak && p.peak->process;
  const std::optional<Bytes> figure = takes ? p.peak->process : p.needed;
  const char* title = takes ? "takes" : "needs at least";
  if (!p.capacity || !figure) return {title, size_or_unknown(figure), "the device's memory is not known"};
  const Bytes room = *p.capacity - p.reserve;
  return {title, human(*figure),
          p.shortfall && *p.shortfall > Bytes(0)
              ? formatted("of {}: {} short", human(*p.capacity), human(*p.shortfall))
              : formatted("of {}: {} to spare", human(*p.capacity), human(room - *figure))};
}

std::string need_card(const Prediction& p) {
  const Need need = need_of(p);
  return card(need.title, need.figure, need.against, css_of(p.verdict));
}

std::string fix_card(const PageInput& input) {
  const PageChange* fix = fastest_fix(input);
  const std::optional<StepTime>& time = input.prediction.time;
  std::string cost = "of one setting each; `dsplan plan` looks further";
  if (fix != nullptr) {
    cost = formatted("{}, at least {}", spaced(name(fix->verdict)), size_or_unknown(fix->needed));
    if (fix->seconds && time)
      cost += formatted(", a step {} instead of {}", seconds_text(*fix->seconds), seconds_text(time->total));
  }
  return card("fastest change that fits", fix == nullptr ? "none" : fix->option, cost);
}

std::string cards(const PageInput& input) {
  const Prediction& p = input.prediction;
  std::string text = need_card(p);
  if (input.over) {
    text += card("runs out of memory", describe_moment(input.schedule, input.model, *input.over),
                 formatted("event {}", *input.over), "bad");
  } else if (p.peak) {
    text += card("fullest", spaced(p.peak->phase), p.peak->event);
  }
  if (p.peak) text += largest_card(*p.peak);
  if (p.verdict == Verdict::DoesNotFit && !input.changes.empty()) {
    text += fix_card(input);
  } else if (p.time) {
    text += card("one step, estimated", seconds_text(p.time->total),
                 formatted("{} to {}, {:.0f} tokens/s, MFU {:.1f} %", seconds_text(p.time->low),
                           seconds_text(p.time->high), p.time->tokens_per_second, 100 * p.time->mfu));
  }
  return text;
}

// The job in a line.
std::string job_text(const PageInput& input) {
  const Prediction& p = input.prediction;
  const Training& t = input.job.training;
  const std::string runtime = t.runtime == Runtime::DeepSpeed ? formatted("ZeRO stage {}", t.zero.stage)
                              : t.runtime == Runtime::Fsdp2   ? std::string("FSDP2")
                              : t.runtime == Runtime::Fsdp1   ? std::string("FSDP1")
                                                              : std::string("PyTorch");
  return formatted(
      "{}, {} ranks (rank {} is shown), {}, {}, micro-batch {} x {}, seq {}, checkpointing {}, attention {}", runtime,
      p.world, p.rank, name(t.dtype), optimizer_text(t), t.micro_batch, t.grad_accum, t.seq, t.checkpoint.text,
      name(t.attention));
}

std::string head(const PageInput& input) {
  const Prediction& p = input.prediction;
  return formatted(
      "<h1>{}: <span id=\"verdict\" class=\"{}\">{}</span></h1>\n<p class=\"soft\" id=\"job\">{}</p>\n"
      "<p id=\"reason\">{}</p>\n<div class=\"cards\" id=\"cards\">\n{}</div>\n",
      in_html(p.model), css_of(p.verdict), spaced(name(p.verdict)), in_html(job_text(input)), in_html(p.verdict_reason),
      cards(input));
}

// Each change that has a view is a switch.
std::string switches(const PageInput& input) {
  std::string text;
  for (std::size_t i = 0; i < input.changes.size(); ++i) {
    const PageChange& change = input.changes[i];
    if (change.view.empty()) continue;
    text += formatted(
        "<button data-view=\"{}\" aria-pressed=\"false\"><code>{}</code> <span class=\"{}\">{}</span></button>", i,
        in_html(change.option), css_of(change.verdict), spaced(name(change.verdict)));
  }
  if (text.empty()) return text;
  return formatted(
      "<div class=\"bar\" id=\"switches\" role=\"group\" aria-label=\"What if\"><span class=\"soft\">what "
      "if</span><button "
      "data-view=\"\" aria-pressed=\"true\">as it is</button>{}</div>\n",
      text);
}

// By the place of its change; null where there is none.
std::string views_of(const PageInput& input) {
  std::string text;
  for (const PageChange& change : input.changes) {
    text += (text.empty() ? "" : ",") + (change.view.empty() ? std::string("null") : change.view);
  }
  return "[" + text + "]";
}

// The chart, what it is read with, and what is alive at a moment. Figures come from the data.
constexpr const char* kChart = R"(<h2>Memory over the schedule</h2>
<p class="soft">From left to right initialisation, the first step and each step after: in estimated time, which is known to a fifth or so, or in
events, whose order is exact. Dashed: reserved. Point: what is alive; click: keep that moment; wheel: zoom; drag: move; arrows, Enter and
Escape do the same.</p>
<div class="picture"><canvas id="chart" tabindex="0" role="img" aria-label="Requested bytes over the schedule, by role"></canvas><div id="tip"></div></div>
<div class="bar"><button id="all">all</button><button id="steady">one step</button><button id="axis" aria-pressed="true">in time</button><span id="keys"></span></div>
<h2>Alive <span id="when"></span> <button id="back" hidden="hidden">back to the peak</button></h2>
<div class="bar of-job"><button id="by-module" aria-pressed="true">by module</button><button id="by-role" aria-pressed="false">by role</button><span id="tile" class="soft"></span></div>
<div class="picture of-job"><canvas id="map" role="img" aria-label="What is alive, as areas"></canvas></div>
<div class="columns"><div class="wide"><table id="roles"><thead><tr><th>role</th><th>bytes</th><th>share</th><th></th></tr></thead><tbody></tbody></table></div>
<div class="wide of-job"><table id="live"><thead><tr><th>what <input id="filter" placeholder="filter" aria-label="filter"/></th><th>bytes</th><th>modules</th></tr></thead><tbody></tbody></table></div></div>
)";

std::string changes_table(const PageInput& input) {
  if (input.changes.empty()) return {};
  const Prediction& p = input.prediction;
  std::string text =
      "<h2>What if</h2>\n<p class=\"soft\">One setting changed at a time, predicted as the job itself. At least: "
      "blocks handed "
      "out, context and communicators; process: with all that the allocator would reserve of a larger "
      "device.</p>\n<div class=\"wide\"><table><tr><th>change</th><th class=\"text\">verdict</th><th>at "
      "least</th><th>process</th><th>step, estimated</th></tr>\n";
  const auto row = [&](const PageChange& change) {
    if (change.refused) {
      text += formatted("<tr><td><code>{}</code></td><td class=\"text soft\" colspan=\"4\">{}</td></tr>\n",
                        in_html(change.option), in_html(*change.refused));
      return;
    }
    text += formatted(
        "<tr><td><code>{}</code></td><td class=\"text {}\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        in_html(change.option), css_of(change.verdict), spaced(name(change.verdict)), size_or_unknown(change.needed),
        size_or_unknown(change.process), change.seconds ? seconds_text(*change.seconds) : "unknown");
  };
  row({"as it is", p.verdict, p.needed, p.peak ? p.peak->process : std::nullopt,
       p.time ? std::optional(p.time->total) : std::nullopt, std::nullopt, ""});
  for (const PageChange& change : input.changes) row(change);
  return text + "</table></div>\n";
}

std::string phases_table(const Prediction& p) {
  std::string text =
      "<div><h2>Peaks of "
      "phases</h2>\n<table><tr><th>phase</th><th>requested</th><th>allocated</th><th>reserved</th></tr>\n";
  for (const Phase& phase : p.phases) {
    text += formatted("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", spaced(phase.name),
                      human(phase.peak_requested), human(phase.peak_allocated), human(phase.peak_reserved));
  }
  text += formatted("<tr><td>the fullest moment</td><td>{}</td><td>{}</td><td>{}</td></tr></table></div>\n",
                    size_or_unknown(p.peak ? std::optional(p.peak->requested) : std::nullopt),
                    size_or_unknown(p.peak ? std::optional(p.peak->allocated) : std::nullopt),
                    size_or_unknown(p.peak ? p.peak->reserved : std::nullopt));
  return text;
}

std::string step_times(const Prediction& p) {
  if (!p.time) return {};
  std::string text =
      "<div><h2>Time of one step, estimated</h2>\n<table><tr><th>part</th><th>together</th><th>compute</th><th>exposed "
      "traffic</th><th>hidden traffic</th><th>host</th></tr>\n";
  for (const PhaseTime& phase : p.time->phases) {
    text += formatted("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                      spaced(phase.name), seconds_text(phase.total()), seconds_text(phase.compute),
                      seconds_text(phase.exposed), seconds_text(phase.hidden), seconds_text(phase.host));
  }
  return text + formatted("</table><p class=\"soft\">{}</p></div>\n", in_html(p.time->basis));
}

std::string collectives(const Prediction& p) {
  if (!p.communication || p.communication->empty()) return {};
  std::string text =
      "<div><h2>Traffic of one step</h2>\n<div "
      "class=\"wide\"><table><tr><th>collective</th><th>group</th><th>phase</th><th>calls</th>"
      "<th>payload</th><th>wire</th></tr>\n";
  for (const TrafficRow& row : *p.communication) {
    text += formatted("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                      spaced(name(row.collective)), name(row.group), name(row.phase), row.calls, human(row.payload),
                      human(row.wire));
  }
  return text + "</table></div></div>\n";
}

std::string assumptions(const PageInput& input) {
  std::string text =
      "<div><h2>Assumed</h2>\n<div class=\"wide\"><table><tr><th>what</th><th class=\"text\">value</th><th "
      "class=\"text\">because</th><th class=\"text\">option</th></tr>\n";
  for (const ResolvedInput& one : input.job.inputs) {
    if (one.origin != Origin::Assumed) continue;
    text += formatted(
        "<tr><td>{}</td><td class=\"text\">{}</td><td class=\"text\">{}</td><td "
        "class=\"text\"><code>{}</code></td></tr>\n",
        in_html(one.name), in_html(one.value), in_html(one.reason), in_html(one.option));
  }
  text += "</table></div></div>\n";
  if (input.prediction.not_modelled.empty()) return text;
  text += "<div><h2>Not modelled</h2>\n<table><tr><th>what</th><th class=\"text\">because</th></tr>\n";
  for (const Absence& one : input.prediction.not_modelled) {
    text += formatted("<tr><td>{}</td><td class=\"text\">{}</td></tr>\n", in_html(one.what), in_html(one.why));
  }
  return text + "</table></div>\n";
}

}  // namespace

PageWords page_words(const PageInput& input) {
  const Prediction& p = input.prediction;
  const Need need = need_of(p);
  return {spaced(name(p.verdict)), std::string(css_of(p.verdict)), job_text(input),
          formatted("{} {} {}", need.title, need.figure, need.against)};
}

std::string page_view(const PageInput& changed) {
  const Prediction& p = changed.prediction;
  Json view = axes_of(changed);
  view.set("verdict", spaced(name(p.verdict)));
  view.set("kind", css_of(p.verdict));
  view.set("job", job_text(changed));
  view.set("reason", p.verdict_reason);
  view.set("cards", cards(changed));
  put_levels(changed.timeline, view);
  return in_script(view);
}

std::string html_page(const PageInput& input) {
  const Prediction& p = input.prediction;
  std::string text = page_begin(formatted("dsplan: {}, {}", p.model, spaced(name(p.verdict))));
  text += head(input) + switches(input) + kChart + changes_table(input);
  text +=
      "<div class=\"columns\">\n" + phases_table(p) + step_times(p) + collectives(p) + assumptions(input) + "</div>\n";
  if (input.measured) text += measured_part(*input.measured);
  text += formatted(
      "<h2>Made by</h2>\n<pre id=\"command\">{}</pre><button data-copy=\"command\">copy</button>\n"
      "<p class=\"soft\">{} events, {}</p>\n",
      in_html(input.command), input.timeline.events, in_html(p.fingerprint));
  text += formatted(
      "<script type=\"application/json\" id=\"data\">{}</script>\n<script type=\"application/json\" "
      "id=\"views\">{}</script>\n<script>\n{}</script>\n</body>\n</html>\n",
      data_of(input), views_of(input), kPageScript);
  return text;
}

}  // namespace dsplan
