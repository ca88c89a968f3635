// What a hub answers for a config.json: the first line is the status, then the head up to an empty line, the rest is
// the body. It is refused, or its names are parts of paths in the cache, and its text is a JSON object.
#include <algorithm>
#include <string_view>

#include "io/hub/curl.h"
#include "io/hub/hub.h"
#include "io/text.h"
#include "property.h"

using namespace dsplan;

namespace {

HttpAnswer answer_of(std::string_view text) {
  HttpAnswer answer;
  bool first = true;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line == "\r") break;
    if (first) {
      for (const char c : line.substr(0, 3)) answer.status = answer.status * 10 + (c - '0');
    } else {
      add_header(line, answer);
    }
    first = false;
  }
  answer.body = std::string(text);
  return answer;
}

void judge_name(const std::string& name) {
  fuzz::require(!name.empty() && name.size() <= 128, "a name in the cache has a length that files have");
  fuzz::require(std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isxdigit(c) != 0; }),
                "a name in the cache is hexadecimal");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const HttpAnswer answer = answer_of({reinterpret_cast<const char*>(data), size});
  HubFile file;
  if (!fuzz::accepts([&] { file = hub_file("org/name", "config.json", answer, size % 2 == 0); })) return 0;
  fuzz::require(answer.status == 200, "an accepted answer says 200");
  judge_name(file.etag);
  judge_name(file.commit);
  fuzz::require(parse_json("config.json", file.text).root.is(Value::Kind::Object), "an accepted text is an object");
  return 0;
}
