// Ordered JSON values that io's writers share. Only for its .cpp files, as it shows nlohmann/json.
#pragma once

#include <nlohmann/json.hpp>

#include "core/document.h"

namespace dsplan::detail {

using Json = nlohmann::ordered_json;

// A parsed document's value, with the order of its keys.
[[nodiscard]] inline Json json_of(const Value& value) {
  switch (value.kind) {
    case Value::Kind::Null: return nullptr;
    case Value::Kind::Bool: return value.boolean;
    case Value::Kind::Integer: return value.integer;
    case Value::Kind::Real: return value.real;
    case Value::Kind::String: return value.string;
    case Value::Kind::Array: {
      Json list = Json::array();
      for (const Value& item : value.items) list.push_back(json_of(item));
      return list;
    }
    case Value::Kind::Object: break;
  }
  Json object = Json::object();
  for (const Member& member : value.members) object[member.key] = json_of(member.value);
  return object;
}

}  // namespace dsplan::detail
