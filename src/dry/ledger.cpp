#include "dry/ledger.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "dry/device.h"
#include "dry/memory.h"

namespace {

std::atomic<dsplan_dry_call*>& first_call() {
  static std::atomic<dsplan_dry_call*> first{nullptr};
  return first;
}

// Where the launcher looks for what this process has to say; empty without one.
std::string file_for_launcher(const char* kind) {
  const char* folder = std::getenv("DSPLAN_DRY_LEDGERS");
  return folder == nullptr ? std::string() : std::string(folder) + "/" + std::to_string(getpid()) + "." + kind;
}

}  // namespace

extern "C" void dsplan_dry_called(dsplan_dry_call* call) {
  if (call->count.fetch_add(1, std::memory_order_relaxed) != 0) return;
  dsplan_dry_call* head = first_call().load();
  do {
    call->next = head;
  } while (!first_call().compare_exchange_weak(head, call));
}

namespace dsplan::dry {
namespace {

std::array<std::atomic<std::uint64_t>, kCounted> counters{};
constexpr std::array<const char*, kCounted> kNames = {"launches", "device_allocations", "device_frees",
                                                      "copies",   "copies_left_out",    "refused"};

struct Collective {
  std::uint64_t calls = 0;
  std::uint64_t payload = 0;
};
struct Collectives {
  std::mutex lock;
  std::map<std::tuple<std::string, std::string, int, bool>, Collective> rows;
};
Collectives& collectives() {
  static auto* const made = new Collectives;
  return *made;
}

// Names of calls hold nothing that JSON escapes; what was guessed is written in this program.
std::string calls_as_json(bool guesses) {
  std::vector<const dsplan_dry_call*> calls;
  for (const dsplan_dry_call* call = first_call().load(); call != nullptr; call = call->next.load()) {
    if ((call->guess != nullptr) == guesses) calls.push_back(call);
  }
  std::sort(calls.begin(), calls.end(), [](const auto* a, const auto* b) { return std::strcmp(a->name, b->name) < 0; });
  std::string text = "[";
  for (const dsplan_dry_call* call : calls) {
    text += text.size() > 1 ? ", " : "";
    text += std::string("{\"call\": \"") + call->name + "\", \"count\": " + std::to_string(call->count.load());
    if (guesses) text += std::string(", \"guess\": \"") + call->guess + "\"";
    text += "}";
  }
  return text + "]";
}

std::string collectives_as_json() {
  const std::lock_guard guard(collectives().lock);
  std::string text = "[";
  for (const auto& [key, row] : collectives().rows) {
    const auto& [name, dtype, ranks, control] = key;
    text += text.size() > 1 ? ", " : "";
    text += "{\"collective\": \"" + name + "\", \"ranks\": " + std::to_string(ranks) + ", \"dtype\": \"" + dtype +
            "\", \"kind\": \"" + (control ? "control" : "data") + "\", \"calls\": " + std::to_string(row.calls) +
            ", \"payload_bytes\": " + std::to_string(row.payload) + "}";
  }
  return text + "]";
}

}  // namespace

void count(Counted what) { counters[static_cast<std::size_t>(what)].fetch_add(1, std::memory_order_relaxed); }

std::uint64_t counted(Counted what) { return counters[static_cast<std::size_t>(what)].load(); }

void count_collective(const CollectiveKind& kind, std::size_t payload, bool again) {
  const std::lock_guard guard(collectives().lock);
  Collective& row = collectives().rows[{kind.name, kind.dtype, kind.ranks, kind.control}];
  row.calls += again ? 0 : 1;
  row.payload += payload;
}

std::string ledger() {
  std::string text = "{";
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    text += std::string("\"") + kNames[i] + "\": " + std::to_string(counters[i].load()) + ", ";
  }
  std::size_t used = 0;
  std::size_t peak = 0;
  for (int i = 0; i < device().count; ++i) {
    used += memory_of(i).used();
    peak = std::max(peak, memory_of(i).peak());
  }
  text += "\"device_used\": " + std::to_string(used) + ", \"device_peak\": " + std::to_string(peak);
  text += ", \"pinned_used\": " + std::to_string(pinned().used());
  text += ", \"pinned_peak\": " + std::to_string(pinned().peak());
  text += ", \"context\": " + std::to_string(device().context);
  text += ", \"collectives\": " + collectives_as_json();
  text += ", \"stubs\": " + calls_as_json(false) + ", \"guesses\": " + calls_as_json(true);
  return text + "}";
}

}  // namespace dsplan::dry

void dsplan::dry::tell_missing_device(int ordinal) {
  const std::string path = file_for_launcher("ordinal");
  std::FILE* file = path.empty() ? nullptr : std::fopen(path.c_str(), "w");
  if (file == nullptr) return;
  const std::string text = std::to_string(ordinal);
  std::fwrite(text.data(), 1, text.size(), file);
  std::fclose(file);
}

// For the program beside it: the ledger, valid until the same thread asks again.
extern "C" const char* dsplan_dry_ledger() {
  thread_local std::string text;
  text = dsplan::dry::ledger();
  return text.c_str();
}

// A program that used the device leaves its ledger where the launcher looks, whatever language it is written in.
__attribute__((destructor)) static void leave_the_ledger() {
  using dsplan::dry::Counted;
  const std::string path = file_for_launcher("json");
  const bool used = first_call().load() != nullptr || dsplan::dry::counted(Counted::DeviceAllocations) > 0;
  if (path.empty() || !used) return;
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return;
  const std::string text = dsplan::dry::ledger();
  std::fwrite(text.data(), 1, text.size(), file);
  std::fclose(file);
}
