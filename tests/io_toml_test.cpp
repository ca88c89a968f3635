// parse_toml: the values of TOML 1.0, their places, and what is refused.
#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "io/text.h"
#include "io_show.h"

using namespace dsplan;

TEST_CASE("TOML is read in the order of the file") {
  const Document document =
      parse_toml("f",
                 "z = 1\n[training]\nseq_len = 8_192  # é\nlr = 3e-4\nname = 'a \"b\"'\n"
                 "[training.dataloader]\nworkers = 0x10\n[a]\nlist = [true, \"é\\u00e9\", [1.5]]\n"
                 "inline = {x = 1, y.z = 2}\n[[t]]\nk = 1\n[[t]]\nk = 2\n");
  CHECK(plain(document.root) ==
        plain(parse_json("f", R"({"z": 1, "training": {"seq_len": 8192, "lr": 0.0003, "name": "a \"b\"",
            "dataloader": {"workers": 16}}, "a": {"list": [true, "éé", [1.5]], "inline": {"x": 1, "y": {"z": 2}}},
            "t": [{"k": 1}, {"k": 2}]})")
                  .root));
}

TEST_CASE("TOML values know their byte offsets, also after wide characters") {
  const std::string text = "\xEF\xBB\xBF# é\n\"é\" = 'x'\nb = [\"é\", 2]\n[c]\nd = 1\n";
  const Document document = parse_toml("f", text);
  const auto& members = document.root.members;
  REQUIRE(members.size() == 3);
  CHECK(members[0].key_offset == text.find("\"é\""));
  CHECK(members[0].value.offset == text.find("'x'"));
  CHECK(members[1].value.offset == text.find("[\""));
  CHECK(members[1].value.items[1].offset == text.find("2]"));
  CHECK(members[2].value.members[0].key_offset == text.find("d ="));
  CHECK(members[2].value.members[0].value.offset == text.find("1\n"));
}

TEST_CASE("TOML faults have their places") {
  const std::string twice = refusal(parse_toml, "[training]\nsteps = 1\nsteps = 2\n");
  CHECK(twice.starts_with("f:3:"));
  CHECK(twice.find("not TOML: cannot redefine existing integer 'steps'") != std::string::npos);
  CHECK(refusal(parse_toml, "[a]\nb = 1\n[a]\nc = 2\n").starts_with("f:3:"));
  CHECK(refusal(parse_toml, "[a]\nb = \n").starts_with("f:2:"));
  CHECK(refusal(parse_toml, "a = 2001-12-14\n") ==
        "f:1:5: error: dates and times are not read here\n    1 | a = 2001-12-14\n      |     ^\n");
  CHECK(refusal(parse_toml, "a = inf\n").starts_with("f:1:5: error: not a finite number"));
  CHECK(refusal(parse_toml, "a = 99999999999999999999\n").starts_with("f:1:"));
  CHECK(refusal(parse_toml, "a = \"\xFF\"\n").find("UTF-8") != std::string::npos);
  // toml++'s tables of white space had nothing to say of it (found by fuzz_toml, under UBSan).
  CHECK(refusal(parse_toml, "d\xCD\xB3,").starts_with("f:1:2: error: not TOML: expected '='"));
  std::string deep = "a";
  for (int i = 0; i < 200; ++i) deep += ".a";
  CHECK(refusal(parse_toml, deep + " = 1\n").find("nested deeper than 128 levels") != std::string::npos);
  CHECK(refusal(parse_toml, "[" + deep + "]\n").find("nested deeper than 128 levels") != std::string::npos);
  // A header and a key behind it, or a list in a table: 127 levels below the root, and one more.
  const auto dotted = [](std::size_t parts) {
    std::string text = "a";
    for (std::size_t i = 1; i < parts; ++i) text += ".a";
    return text;
  };
  (void)parse_toml("f", "[" + dotted(100) + "]\n" + dotted(28) + " = 1\n");
  CHECK(refusal(parse_toml, "[" + dotted(100) + "]\n" + dotted(29) + " = 1\n").find("nested deeper than 128 levels") !=
        std::string::npos);
  CHECK(refusal(parse_toml, "[" + dotted(127) + "]\na = [[1]]\n").find("nested deeper than 128 levels") !=
        std::string::npos);
  CHECK(refusal(parse_toml, "a = " + std::string(500, '[') + "\n").find("not TOML") != std::string::npos);
  CHECK(refusal(parse_toml, std::string(kLargestYaml + 1, ' ')) == "f: error: larger than 1 MiB, the most for TOML\n");
}
