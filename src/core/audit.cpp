// Buffers, releases, modules, the loop's marks, and what must hold at the end.

#include "core/audit.h"

#include <algorithm>
#include <functional>

#include "core/auditor.h"
#include "core/format.h"

namespace dsplan {

Auditor::Auditor(const Schedule& schedule, std::size_t most)
    : schedule_(schedule),
      most_(most),
      states_(schedule.buffers.size()),
      identified_(schedule.accesses.size() + schedule.events.size() + 1),
      ours_(identified_.size()),
      maker_(identified_.size()),
      made_at_(identified_.size()),
      partly_read_(identified_.size()) {
  for (BufferId buffer : schedule.survivors) {
    if (known(buffer)) states_[buffer].survives = true;
  }
  for (const Promise& promise : schedule.promises) {
    if (known(promise.what.buffer) && promise.kind == PromiseKind::UpdatedEachStep) updates_.push_back(promise);
  }
  std::stable_sort(updates_.begin(), updates_.end(),
                   [](const Promise& a, const Promise& b) { return a.what.buffer < b.what.buffer; });
  updated_.assign(updates_.size(), 0);
}

bool Auditor::known(BufferId buffer) {
  if (states_.has(buffer)) return true;
  find("there is no buffer {}", buffer);
  return false;
}

// Contents and markers come into being once.
bool Auditor::identify(ContentId id) {
  if (id == kNone || !identified_.has(id)) {
    find("identity {} is out of range", id);
    return false;
  }
  if (identified_[id]) find("identity {} is given twice", id);
  identified_[id] = true;
  return true;
}

void Auditor::on(std::size_t at, const Allocate& event) {
  if (full()) return;
  at_ = at;
  before_ = {};
  if (!known(event.buffer)) return;
  State& state = states_[event.buffer];
  if (state.allocated) find("buffer {} is allocated twice", named(event.buffer));
  state.allocated = true;
  state.stream = event.stream;
  if (is_stream(event.stream)) state.since = clocks_[event.stream][event.stream];
}

void Auditor::on(std::size_t at, const Release& event) {
  if (full()) return;
  at_ = at;
  if (!known(event.buffer)) return;
  State& state = states_[event.buffer];
  if (!state.allocated) find("buffer {} is released before it is allocated", named(event.buffer));
  if (state.released) find("buffer {} is released twice", named(event.buffer));
  if (state.stream != event.stream) find("buffer {} was allocated on another stream", named(event.buffer));
  state.released = true;
  const bool last_use = before_.work && state.touched == works_;
  if (event.reason == Reason::LastUse) {
    if (!last_use || event.cause != kNone)
      find("buffer {} is not released right after its last use", named(event.buffer));
  } else {
    if (last_use) find("buffer {} gives {} for a release at its last use", named(event.buffer), name(event.reason));
    if (event.cause == kNone || event.cause != before_.id) {
      find("buffer {} is not released right after its cause {}", named(event.buffer), event.cause);
    }
  }
  // Modules are gathered whole. An early stop unwinds a recomputation before its last readers have run, but then
  // nothing more may run in it. Where results were kept, their operators do not run again and read nothing.
  const bool recomputing = !modules_.empty() && modules_.back().pass == Pass::Recompute;
  for (const Piece& piece : state.pieces) {
    if (recomputing && is_unread(event.buffer, piece)) {
      stopped_ = !schedule_.keeps_results;
    } else if (event.reason != Reason::ModuleExit) {
      lose(event.buffer, piece);
    }
  }
  state.pieces.clear();
}

void Auditor::on(std::size_t at, const Enter& event) {
  if (full()) return;
  at_ = at;
  before_ = {event.id, false};
  identify(event.id);
  modules_.push_back(event);
}

void Auditor::on(std::size_t at, const Exit& event) {
  if (full()) return;
  at_ = at;
  before_ = {event.id, false};
  identify(event.id);
  if (stopped_ && !event.abandoned) find("an early stop does not abandon module {}", event.module);
  stopped_ = false;
  if (event.abandoned && event.pass != Pass::Recompute) find("only recomputation abandons a module");
  if (modules_.empty() || modules_.back().module != event.module || modules_.back().pass != event.pass) {
    find("module {} is left but is not the innermost", event.module);
    return;
  }
  modules_.pop_back();
}

void Auditor::on(std::size_t at, const Mark& event) {
  if (full()) return;
  at_ = at;
  before_ = {event.id, false};
  identify(event.id);
  if (!modules_.empty()) find("\"{}\" inside module {}", name(event.moment), modules_.back().module);
  if (event.moment == Moment::StepBegins) {
    in_step_ = true;
    updated_.assign(updates_.size(), 0);
  } else if (event.moment == Moment::StepEnds) {
    in_step_ = false;
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      const Access& what = updates_[i].what;
      if (updated_[i] != what.bytes.value()) {
        find("the step wrote {} of the {} bytes at {} of buffer {}", updated_[i], what.bytes.value(),
             what.offset.value(), named(what.buffer));
      }
    }
  }
}

void Auditor::judge_size(BufferId id) {
  const Buffer& buffer = schedule_.buffers[id];
  const State& state = states_[id];
  const std::int64_t size = buffer.size.value();
  if (!state.allocated) find("buffer {} is never allocated", named(id));
  if (state.survives == state.released) find("buffer {} is released or survives, one of both", named(id));
  if (size <= 0 || size % bytes_per_element(buffer.dtype) != 0) find("buffer {} cuts an element", named(id));
  if (buffer.capacity ? state.extent > size : state.extent != size) {
    find("buffer {} of {} bytes is touched up to {}", named(id), size, state.extent);
  }
}

void Auditor::judge_promise(const Promise& promise) {
  const Access& what = promise.what;
  std::int64_t held = 0;
  for (const Piece& piece : states_[what.buffer].pieces) {
    const std::int64_t from = std::max(piece.from, what.offset.value());
    const std::int64_t to = std::min(piece.to, (what.offset + what.bytes).value());
    if (from < to && piece.content == what.content) held += to - from;
  }
  if (held != what.bytes.value()) find("buffer {} does not hold {} at the end", named(what.buffer), what.content);
}

std::vector<Finding> Auditor::finish() {
  if (full()) return std::move(findings_);
  at_ = schedule_.events.size();
  if (!modules_.empty()) find("module {} is never left", modules_.back().module);
  if (in_step_) find("a step never ends");
  if (schedule_.rank < 0 || schedule_.rank >= schedule_.dp || schedule_.dp * schedule_.tp > schedule_.world)
    find("impossible rank");
  if (std::adjacent_find(schedule_.survivors.begin(), schedule_.survivors.end(), std::greater_equal<>()) !=
      schedule_.survivors.end()) {
    find("survivors are not ascending");
  }
  std::int64_t promised = 0;
  for (const Promise& promise : schedule_.promises) {
    if (promise.kind != PromiseKind::HeldAtTheEnd || !known(promise.what.buffer)) continue;
    judge_promise(promise);
    promised += promise.what.bytes.value();
  }
  for (const BufferId id : states_.ids()) {
    judge_size(id);
    for (const Piece& piece : states_[id].pieces) promised -= piece.to - piece.from;
  }
  if (promised != 0) find("what survivors hold and what is promised differ by {} bytes", promised);
  return std::move(findings_);
}

std::vector<Finding> audit(const Schedule& schedule, std::size_t most) {
  Auditor auditor(schedule, most);
  replay(schedule, auditor);
  return auditor.finish();
}

namespace {

// The collectives of one rank, for comparison with another's.
struct Collectives : Ignores<Allocate, Release, Compute, RecordEvent, WaitEvent, EmptyCache, Enter, Exit, Mark> {
  using Ignores::on;
  void on(std::size_t at, const Communicate& event) { list.emplace_back(at, &event); }
  std::vector<std::pair<std::size_t, const Communicate*>> list;
};

bool same(const Communicate& a, const Communicate& b) {
  return a.collective == b.collective && a.group == b.group && a.dtype == b.dtype && a.kind == b.kind &&
         a.payload == b.payload && a.pass == b.pass && a.module == b.module && a.stream == b.stream;
}

}  // namespace

std::vector<Finding> audit_ranks(std::span<const Schedule> ranks, std::size_t most) {
  std::vector<Finding> findings;
  const auto find = [&](std::size_t at, const Schedule& schedule, std::string_view text) {
    if (findings.size() < most) findings.push_back({at, formatted("rank {}: {}", schedule.rank, text)});
  };
  Collectives expected;
  if (!ranks.empty()) replay(ranks.front(), expected);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Schedule& schedule = ranks[i];
    const std::size_t end = schedule.events.size();
    if (schedule.rank < 0 || schedule.rank >= schedule.dp) find(end, schedule, "not a rank of its group");
    if (schedule.world != ranks[0].world || schedule.dp != ranks[0].dp || schedule.tp != ranks[0].tp)
      find(end, schedule, "another world");
    for (std::size_t j = 0; j < i; ++j) {
      if (ranks[j].rank == schedule.rank) find(end, schedule, "this rank appears twice");
    }
    Collectives found;
    replay(schedule, found);
    for (std::size_t k = 0; k < std::min(found.list.size(), expected.list.size()); ++k) {
      if (same(*found.list[k].second, *expected.list[k].second)) continue;
      find(found.list[k].first, schedule, formatted("collective {} is not rank {}'s", k, ranks[0].rank));
      break;
    }
    if (found.list.size() != expected.list.size()) {
      find(end, schedule,
           formatted("{} collectives, rank {} has {}", found.list.size(), ranks[0].rank, expected.list.size()));
    }
  }
  return findings;
}

}  // namespace dsplan
