#include "schema.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

using Json = nlohmann::ordered_json;

namespace dsplan::test {
namespace {

std::string_view schema_type(const Json& value) {
  return value.is_null()             ? "null"
         : value.is_boolean()        ? "boolean"
         : value.is_number_integer() ? "integer"
         : value.is_string()         ? "string"
         : value.is_array()          ? "array"
         : value.is_object()         ? "object"
                                     : "number";
}

void check_against(const Json& schema, const Json& value, const std::string& path) {
  INFO(path);
  if (schema.contains("$ref")) return;  // What another schema describes is checked where that is printed.
  if (schema.contains("enum")) {
    CHECK(std::find(schema["enum"].begin(), schema["enum"].end(), value) != schema["enum"].end());
    return;
  }
  const Json types = schema.at("type").is_array() ? schema["type"] : Json::array({schema["type"]});
  const std::string type(schema_type(value));
  const bool whole = type == "integer" && std::find(types.begin(), types.end(), "number") != types.end();
  CHECK_MESSAGE((whole || std::find(types.begin(), types.end(), type) != types.end()), type, " of ", types.dump());
  if (value.is_number() && schema.contains("minimum")) CHECK(value >= schema["minimum"]);
  if (type == "array") {
    for (const Json& item : value) check_against(schema.at("items"), item, path + "[]");
  }
  if (type != "object" || !schema.contains("additionalProperties")) return;  // A document is whatever it is.
  if (schema["additionalProperties"].is_object()) {
    for (const auto& [key, child] : value.items()) {
      check_against(schema["additionalProperties"], child, path + "." + key);
    }
    return;
  }
  for (const Json& key : schema.at("required")) CHECK(value.contains(key.get<std::string>()));
  for (const auto& [key, child] : value.items()) {
    REQUIRE_MESSAGE(schema["properties"].contains(key), path, ".", key);
    check_against(schema["properties"][key], child, path + "." + key);
  }
}

}  // namespace

void check_schema(const Folder& folder, const std::string& kind, const std::string& json) {
  const Ran ran = run_binary(folder, {"show", "schema", kind});
  REQUIRE_MESSAGE(ran.code == 0, ran.err);
  check_against(Json::parse(ran.out), Json::parse(json), kind);
}

}  // namespace dsplan::test
