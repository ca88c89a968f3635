#include <doctest/doctest.h>

#include <utility>

#include "io/text.h"
#include "io_show.h"

using namespace dsplan;
using Kind = Value::Kind;

TEST_CASE("YAML resolves plain scalars as PyYAML does, and 5e8 as a number") {
  const std::pair<const char*, std::string> rows[] = {
      {"5", "5"},
      {"-5", "-5"},
      {"+5", "5"},
      {"010", "8"},
      {"0x1F", "31"},
      {"0b101", "5"},
      {"1_000", "1000"},
      {"0", "0"},
      {"09", "\"09\""},
      {"yes", "true"},
      {"Off", "false"},
      {"y", "\"y\""},
      {"~", "null"},
      {"", "null"},
      {"Null", "null"},
      {"\"5\"", "\"5\""},
      {"'x'", "\"x\""},
      {"a b", "\"a b\""},
      {"1e", "\"1e\""},
      {"!!str 5", "\"5\""},
      {"!!int \"5\"", "5"},
      {"! 5", "\"5\""},
      {"- 1\n- 2", "[1, 2]"},
      {"a: |\n  x\n  y", "{\"a\": \"x\ny\"}"},
      {"{a: [1, é], b: }", "{\"a\": [1, \"é\"], \"b\": null}"},
      {"0o7", "\"0o7\""},
      {"{a: {0: 20GiB, cpu: 1}}", "{\"a\": {\"0\": \"20GiB\", \"cpu\": 1}}"},
  };
  for (const auto& [text, expected] : rows) CHECK(plain(parse_yaml("f", text).root) == expected);
  const std::pair<const char*, double> reals[] = {{"5e8", 5e8}, {"1e-5", 1e-5},     {"1.5", 1.5},    {".5", .5},
                                                  {"1.", 1},    {"-1.5e+3", -1500}, {"1_0.5", 10.5}, {"!!float 5", 5}};
  for (const auto& [text, expected] : reals) {
    const Value root = parse_yaml("f", text).root;
    CHECK(root.is(Kind::Real));
    CHECK(root.real == expected);
  }
  CHECK(parse_yaml("f", "18446744073709551616").root.huge);
}

TEST_CASE("YAML values know their byte offsets, also after wide characters") {
  const std::string text = "\xEF\xBB\xBF# é\n\"é\": x\nb: [é, 2]\nc:\n  - d: 1\n";
  const Document document = parse_yaml("f", text);
  CHECK(
      show(document.root) ==
      dsplan::formatted(
          "{{\"é\"@{0}: \"x\"@{1}, \"b\"@{2}: [\"é\"@{3}, 2@{4}]@{5}, \"c\"@{6}: [{{\"d\"@{7}: 1@{8}}}@{7}]@{9}}}@{0}",
          text.find("\"é"), text.find("x\n"), text.find("b:"), text.find("é,"), text.find("2]"), text.find("[é"),
          text.find("c:"), text.find("d:"), text.find("1\n"), text.find("- d")));
}

// Each as PyYAML 6.0.3's safe_load reads it.
TEST_CASE("YAML anchors, aliases and merge keys") {
  const std::pair<const char*, const char*> rows[] = {
      {"a: &x 1\nb: *x", R"({"a": 1, "b": 1})"},
      {"a: &x {p: [1, q]}\nb: [*x, *x]", R"({"a": {"p": [1, "q"]}, "b": [{"p": [1, "q"]}, {"p": [1, "q"]}]})"},
      {"a: &x\n  p: &y 1\n  q: *y\nb: *x\nc: *y", R"({"a": {"p": 1, "q": 1}, "b": {"p": 1, "q": 1}, "c": 1})"},
      {"a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}", R"({"a": {"p": 1, "q": 2}, "b": {"q": 3, "p": 1}})"},
      {"b: {<<: [{a: 1}, {a: 2, c: 3}], z: 1}", R"({"b": {"z": 1, "a": 1, "c": 3}})"},
      {"a: &x {<<: {q: 1}, p: 2}\nb:\n  <<: *x\n  p: 3", R"({"a": {"p": 2, "q": 1}, "b": {"p": 3, "q": 1}})"},
      {"a: &x\nb: *x", R"({"a": null, "b": null})"},
  };
  for (const auto& [text, expected] : rows) {
    CAPTURE(text);
    CHECK(plain(parse_yaml("f", text).root) == plain(parse_json("f", expected).root));
  }
  // An alias stands where it is written, what is inside where that is.
  const Document document = parse_yaml("f", "a: &x [1]\nb: *x\n");
  CHECK(document.root.members[1].value.offset == 13);
  CHECK(document.root.members[1].value.items[0].offset == 7);
}

TEST_CASE("YAML: what aliases make of a few lines is bounded") {
  std::string text = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + before;
    for (int k = 1; k < 10; ++k) text += ", " + before;
    text += "]\n";
  }
  const std::string said = refusal(parse_yaml, text);
  CHECK(said.find("the file holds too much") != std::string::npos);
  CHECK(said.find("the file holds too much") == said.rfind("the file holds too much"));  // Once is enough.
  std::string deep = "a0: &a0 [1]\n";
  for (int i = 1; i < 300; ++i) {
    deep += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [*a" + std::to_string(i - 1) + "]\n";
  }
  CHECK(refusal(parse_yaml, deep).find("the file holds too much") != std::string::npos);
}

TEST_CASE("YAML faults") {
  const Row rows[] = {
      {"a: 1\na: 2\n", "f:2:1: error: duplicate key \"a\"; first given on line 1\n    2 | a: 2\n      | ^\n"},
      {"a: *x\n", "f:1:4: error: alias *x names no anchor above it\n    1 | a: *x\n      |    ^\n"},
      {"a: &x [*x]\n", "f:1:8: error: alias *x stands inside what it names\n    1 | a: &x [*x]\n      |        ^\n"},
      {"a: &x 1\nb: &x 2\n", "f:2:4: error: a second anchor &x\n    2 | b: &x 2\n      |    ^\n"},
      {"a: &x b\n*x : 1\n", "f:2:1: error: an alias as a key is not read here\n    2 | *x : 1\n      | ^\n"},
      {"&x a: 1\n", "f:1:1: error: an anchor on a key is not read here\n    1 | &x a: 1\n      | ^\n"},
      {"a: !x 1", "f:1:4: error: tag \"!x\" is not read here\n    1 | a: !x 1\n      |    ^\n"},
      {"a: !!int x", "f:1:4: error: \"x\" is not what its tag !!int says\n    1 | a: !!int x\n      |    ^\n"},
      {"# x\n%TAG !a! b\n---\n1", "f:2:1: error: %TAG directives are not read here\n    2 | %TAG !a! b\n      | ^\n"},
      {"a\n---\nb", "f:2:1: error: a second document in one file\n    2 | ---\n      | ^\n"},
      {"1: 2", "f:1:1: error: key \"1\" is an integer to YAML; put it in quotes\n    1 | 1: 2\n      | ^\n"},
      {"[1]: 2", "f:1:1: error: a key must be a string\n    1 | [1]: 2\n      | ^\n"},
      {"<<: 1",
       "f:1:5: error: a merge key takes a mapping or a list of them, not an integer\n    1 | <<: 1\n      |     ^\n"},
      {"a: <<", "f:1:4: error: \"<<\" is YAML's merge key, and no value\n    1 | a: <<\n      |    ^\n"},
      {"'<<': 1", "f:1:1: error: the key \"<<\" in quotes is not read here\n    1 | '<<': 1\n      | ^\n"},
      {"a: 1:30",
       "f:1:4: error: \"1:30\" is a base-60 number to YAML; put it in quotes if it is a string\n    1 | a: "
       "1:30\n      |    ^\n"},
      {"a: 2001-12-14",
       "f:1:4: error: \"2001-12-14\" is a timestamp to YAML; put it in quotes if it is a string\n    1 "
       "| a: 2001-12-14\n      |    ^\n"},
      {"a: .inf", "f:1:4: error: \".inf\" is not a finite number\n    1 | a: .inf\n      |    ^\n"},
      {"a: 1e999", "f:1:4: error: \"1e999\" is too large for a number\n    1 | a: 1e999\n      |    ^\n"},
      {"a:\n\tb: 1",
       "f:2:1: error: not YAML: found character that cannot start any token (while scanning for the next "
       "token, line 2); indent with blanks, not with tabs\n    2 |  b: 1\n      | ^\n"},
      {"a: [1",
       "f:1:6: error: not YAML: did not find expected ',' or ']' (while parsing a flow sequence, line 1)\n    1 "
       "| a: [1\n      |      ^\n"},
      {"a: \x01", "f:1:4: error: not YAML: control characters are not allowed\n    1 | a:  \n      |    ^\n"},
  };
  for (const Row& row : rows) CHECK(refusal(parse_yaml, row.text) == row.expected);
  CHECK(refusal(parse_yaml, std::string((1 << 20) + 1, ' ')) == "f: error: larger than 1 MiB, the most for YAML\n");
}
