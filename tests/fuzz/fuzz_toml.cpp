// parse_toml: the text is kept, every offset lies in it, members are in its order, and its value, written as JSON,
// parses to an equal value.
#include "io/text.h"
#include "property.h"

using namespace dsplan;

namespace {

void judge(const Document& document, const Value& value) {
  fuzz::require(value.offset <= document.text.size(), "a value lies in the text");
  for (const Value& item : value.items) judge(document, item);
  std::size_t last = 0;
  for (const Member& member : value.members) {
    fuzz::require(member.key_offset >= last && member.key_offset <= document.text.size(),
                  "keys in the order of the file");
    last = member.key_offset;
    judge(document, member.value);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Document document;
  if (!fuzz::accepts([&] { document = parse_toml("input.toml", text); })) return 0;
  fuzz::require(document.text == text, "the text is kept");
  judge(document, document.root);
  std::string written;
  fuzz::write_json(document.root, written);
  fuzz::require(fuzz::equal(parse_json("written.json", written).root, document.root), "write and read back");
  return 0;
}
