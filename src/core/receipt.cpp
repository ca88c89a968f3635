#include "core/receipt.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "core/format.h"

namespace dsplan {
namespace {

void add_string(std::string_view text, std::string& into) {
  into += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      into += '\\';
      into += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      append_formatted(into, "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      into += c;
    }
  }
  into += '"';
}

void add_value(const Value& value, std::string& into);

void add_object(const Value& value, std::string& into) {
  std::vector<const Member*> members;
  for (const Member& member : value.members) members.push_back(&member);
  std::sort(members.begin(), members.end(), [](const Member* a, const Member* b) { return a->key < b->key; });
  into += '{';
  for (const Member* member : members) {
    if (member != members.front()) into += ',';
    add_string(member->key, into);
    into += ':';
    add_value(member->value, into);
  }
  into += '}';
}

void add_value(const Value& value, std::string& into) {
  switch (value.kind) {
    case Value::Kind::Null: into += "null"; return;
    case Value::Kind::Bool: into += value.boolean ? "true" : "false"; return;
    case Value::Kind::Integer: append_formatted(into, "{}", value.integer); return;
    case Value::Kind::Real: append_formatted(into, "{}", value.real); return;
    case Value::Kind::String: add_string(value.string, into); return;
    case Value::Kind::Array:
      into += '[';
      for (const Value& item : value.items) {
        if (&item != &value.items.front()) into += ',';
        add_value(item, into);
      }
      into += ']';
      return;
    case Value::Kind::Object: add_object(value, into); return;
  }
}

}  // namespace

std::string canonical_json(const Value& value) {
  std::string text;
  add_value(value, text);
  return text;
}

std::string_view name(Counter counter) {
  switch (counter) {
    case Counter::Requested: return "requested";
    case Counter::Allocated: return "allocated";
    case Counter::Active: return "active";
    case Counter::Reserved: return "reserved";
    case Counter::Process: return "process";
  }
  return "?";
}

std::string_view name(Receipt::Level level) {
  switch (level) {
    case Receipt::Level::Threads: return "threads";
    case Receipt::Level::Virtual: return "virtual";
    case Receipt::Level::Nccl: return "nccl";
    case Receipt::Level::Tcp: return "tcp";
    case Receipt::Level::Framework: return "framework";
  }
  return "?";
}

std::string_view name(Receipt::Device device) {
  switch (device) {
    case Receipt::Device::Cuda: return "cuda";
    case Receipt::Device::Cpu: return "cpu";
    case Receipt::Device::Fake: return "fake";
    case Receipt::Device::Host: return "host";
  }
  return "?";
}

std::string_view name(Receipt::Ranks ranks) {
  return ranks == Receipt::Ranks::Process ? "process" : "fake_process_group";
}

std::string_view name(Receipt::Outcome outcome) {
  switch (outcome) {
    case Receipt::Outcome::Ran: return "ran";
    case Receipt::Outcome::OutOfMemory: return "out_of_memory";
    case Receipt::Outcome::Error: return "error";
  }
  return "?";
}

std::string_view name(HeldFor part) { return part == HeldFor::Causes ? "causes" : "final"; }

const Absence* absence_of(const std::vector<Absence>& absent, std::string_view path) {
  std::string_view counter = path.substr(path.rfind('.') + 1);
  if (counter.starts_with("peak_")) counter.remove_prefix(5);
  for (const Absence& one : absent) {
    const std::string_view what = one.what;
    const bool above = path.starts_with(what) && (path.size() == what.size() || path[what.size()] == '.');
    const bool everywhere = what.starts_with("memory.") && what.substr(7) == counter && path.starts_with("memory.");
    if (above || everywhere) return &one;
  }
  return nullptr;
}

HeldFor part_of(const ReceiptInputs& inputs) {
  unsigned first = 0;
  const std::string_view byte = std::string_view(inputs.digest).substr(0, 2);
  const auto [end, error] = std::from_chars(byte.data(), byte.data() + byte.size(), first, 16);
  DSPLAN_CHECK(error == std::errc() && end == byte.data() + 2, "the digest of a receipt's inputs: " + inputs.digest);
  return first % 4 == 0 ? HeldFor::Final : HeldFor::Causes;
}

}  // namespace dsplan
