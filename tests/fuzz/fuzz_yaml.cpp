// parse_yaml: an accepted document without aliases and merge keys has ascending offsets, and its value, written as
// JSON, parses to an equal value.
#include "io/text.h"
#include "property.h"

using namespace dsplan;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Document document;
  if (!fuzz::accepts([&] { document = parse_yaml("input.yaml", text); })) return 0;
  fuzz::require(document.text == text, "the text is kept");
  const bool copies = text.find('*') != std::string::npos || text.find("<<") != std::string::npos;
  if (!copies) fuzz::OffsetJudge(text, false).judge(document.root);
  std::string written;
  fuzz::write_json(document.root, written);
  fuzz::require(fuzz::equal(parse_json("written.json", written).root, document.root), "write and read back");
  return 0;
}
