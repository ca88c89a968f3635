// parse_json: an accepted document has ascending offsets at the right characters, and its value, written out, parses to
// an equal value. Hjson contains JSON: parse_hjson reads the same text to the same value.
#include "io/text.h"
#include "property.h"

using namespace dsplan;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Document document;
  if (!fuzz::accepts([&] { document = parse_json("input.json", text); })) return 0;
  fuzz::require(document.text == text, "the text is kept");
  fuzz::OffsetJudge(text, true).judge(document.root);
  std::string written;
  fuzz::write_json(document.root, written);
  fuzz::require(fuzz::equal(parse_json("written.json", written).root, document.root), "write and read back");
  if (document.root.is(Value::Kind::Object) || document.root.is(Value::Kind::Array)) {
    fuzz::require(fuzz::equal(parse_hjson("input.hjson", text).root, document.root), "JSON is Hjson");
  }
  return 0;
}
