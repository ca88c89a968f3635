#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <random>

#include "io/text.h"

using namespace dsplan;
using Kind = Value::Kind;

namespace {

using Parse = Document (*)(std::string, std::string);

// The whole refusal as it is printed, or "accepted".
std::string refusal(Parse parse, const std::string& text) {
  try {
    (void)parse("f", text);
    return "accepted";
  } catch (const Refusal& refused) {
    return refused.what();
  }
}

// Values with their offsets in one line: {"a"@1: 5@6}@0. Reals are written 1.5e+00, huge ones with a '!'.
std::string show(const Value& value) {
  std::string text;
  switch (value.kind) {
    case Kind::Null: text = "null"; break;
    case Kind::Bool: text = value.boolean ? "true" : "false"; break;
    case Kind::Integer: text = fmt::format("{}", value.integer); break;
    case Kind::Real: text = fmt::format("{:.1e}{}", value.real, value.huge ? "!" : ""); break;
    case Kind::String: text = '"' + value.string + '"'; break;
    case Kind::Array:
      for (const Value& item : value.items) text += (text.empty() ? "" : ", ") + show(item);
      text = '[' + text + ']';
      break;
    case Kind::Object:
      for (const Member& member : value.members) {
        text +=
            fmt::format("{}\"{}\"@{}: {}", text.empty() ? "" : ", ", member.key, member.key_offset, show(member.value));
      }
      text = '{' + text + '}';
      break;
  }
  return fmt::format("{}@{}", text, value.offset);
}

// The value without its offsets.
std::string plain(const Value& value) {
  std::string text = show(value);
  std::string kept;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '@' && i + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[i + 1])) != 0) {
      while (i + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[i + 1])) != 0) ++i;
    } else {
      kept += text[i];
    }
  }
  return kept;
}

// A file that is gone when the test ends.
struct Scratch {
  std::string path;
  explicit Scratch(const std::string& name)
      : path((std::filesystem::temp_directory_path() / fmt::format("dsplan-{}-{}", ::getpid(), name)).string()) {}
  ~Scratch() { std::filesystem::remove_all(path); }
  void write(const std::string& text) const {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    REQUIRE(file != nullptr);
    REQUIRE(std::fwrite(text.data(), 1, text.size(), file) == text.size());
    std::fclose(file);
  }
};

struct Row {
  std::string text;
  std::string expected;
};

// A random JSON value with random blanks, and what `show` must say of it. `out` grows by the text.
std::string random_json(std::mt19937& random, int depth, std::string& out) {
  const auto pick = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random()) % n; };
  const auto blanks = [&] {
    for (std::uint32_t i = pick(3); i > 0; --i) out += " \n\t\r"[pick(4)];
  };
  const auto string = [&](std::string& content) {
    static constexpr std::pair<const char*, const char*> kPieces[] = {
        {"a", "a"}, {"\\\"", "\""},  {"\\\\", "\\"}, {"\\u00e9", "é"}, {"\\ud83d\\ude00", "😀"},
        {"é", "é"}, {":,]}", ":,]}"}};
    out += '"';
    for (std::uint32_t i = pick(4); i > 0; --i) {
      const auto& [written, meant] = kPieces[pick(7)];
      out += written;
      content += meant;
    }
    out += '"';
  };
  blanks();
  const std::size_t at = out.size();
  std::string shown;
  const std::uint32_t kind = pick(depth > 3 ? 5 : 7);
  if (kind < 3) {
    static constexpr std::pair<const char*, const char*> kLiterals[] = {
        {"null", "null"},   {"true", "true"},         {"false", "false"},
        {"0", "0"},         {"-17", "-17"},           {"1.5", "1.5e+00"},
        {"2e8", "2.0e+08"}, {"-0.25e-2", "-2.5e-03"}, {"9223372036854775807", "9223372036854775807"}};
    const auto& [written, meant] = kLiterals[pick(9)];
    out += written;
    shown = meant;
  } else if (kind < 5) {
    std::string content;
    string(content);
    shown = '"' + content + '"';
  } else {
    const bool object = kind == 6;
    out += object ? '{' : '[';
    for (std::uint32_t i = 0, n = pick(4); i < n; ++i) {
      if (i > 0) out += ',', shown += ", ";
      if (object) {
        blanks();
        shown += fmt::format("\"k{}", i);
        const std::size_t key_at = out.size();
        out += fmt::format("\"k{}\"", i);
        shown += fmt::format("\"@{}: ", key_at);
        blanks();
        out += ':';
      }
      shown += random_json(random, depth + 1, out);
    }
    blanks();
    out += object ? '}' : ']';
    shown = (object ? '{' : '[') + shown + (object ? '}' : ']');
  }
  const std::string placed = fmt::format("{}@{}", shown, at);
  blanks();
  return placed;
}

// `text` at the offset of each value begins with that value: parsing its longest acceptable start gives it back.
void reparse(const Document& document, const Value& value) {
  const std::string_view rest = std::string_view(document.text).substr(value.offset);
  for (std::size_t length = 1; length <= rest.size(); ++length) {
    const char next = length < rest.size() ? rest[length] : ' ';
    if (std::string_view(" \n\t\r,:]}").find(next) == std::string_view::npos) continue;
    if (refusal(parse_json, std::string(rest.substr(0, length))) != "accepted") continue;
    CHECK(plain(parse_json("", std::string(rest.substr(0, length))).root) == plain(value));
    break;
  }
  for (const Value& item : value.items) reparse(document, item);
  for (const Member& member : value.members) reparse(document, member.value);
}

}  // namespace

TEST_CASE("JSON values know their offsets") {
  const Row rows[] = {
      {"{\"a\": 1, \"b\": [1.5, null, {}]}", "{\"a\"@1: 1@6, \"b\"@9: [1.5e+00@15, null@20, {}@26]@14}@0"},
      {"\xEF\xBB\xBF [true]", "[true@5]@4"},
      {"  \"x\\\"y\" ", "\"x\"y\"@2"},
      {"[9223372036854775807,-9223372036854775808]", "[9223372036854775807@1, -9223372036854775808@21]@0"},
      {"[9223372036854775808,-9223372036854775809]", "[9.2e+18!@1, -9.2e+18!@21]@0"},
      {"1e-400", "0.0e+00@0"},
  };
  for (const Row& row : rows) CHECK(show(parse_json("f", row.text).root) == row.expected);
  CHECK(parse_json("f", "9223372036854775808").root.real == 0x1p63);
}

TEST_CASE("random JSON documents: every offset, and parsing at an offset gives the value back") {
  std::mt19937 random(20240611);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    const std::string expected = random_json(random, 0, text);
    const Document document = parse_json("f", text);
    REQUIRE(show(document.root) == expected);
    if (i % 10 == 0) reparse(document, document.root);
    // JSON is Hjson, to the same offsets.
    if (document.root.is(Kind::Object) || document.root.is(Kind::Array)) {
      REQUIRE(show(parse_hjson("f", text).root) == expected);
    }
  }
}

TEST_CASE("JSON faults in plain words, with the line and a caret") {
  const Row rows[] = {
      {"", "f:1:1: error: the file is empty; expected a JSON value\n    1 | \n      | ^\n"},
      {"{\"a\": 1,}",
       "f:1:9: error: expected a key after ',', found '}'; remove the trailing comma\n    1 | {\"a\": 1,}\n      |     "
       " "
       "   ^\n"},
      {"[1,\n 2,\n]",
       "f:3:1: error: expected a value after ',', found ']'; remove the trailing comma\n    3 | ]\n      | ^\n"},
      {"{\"a\" 1}", "f:1:6: error: expected ':' after the key, found '1'\n    1 | {\"a\" 1}\n      |      ^\n"},
      {"{\"a\": 1\n\"b\": 2}", "f:2:1: error: expected ',' or '}', found '\"'\n    2 | \"b\": 2}\n      | ^\n"},
      {"[1 2]", "f:1:4: error: expected ',' or ']', found '2'\n    1 | [1 2]\n      |    ^\n"},
      {"{a: 1}", "f:1:2: error: expected a key, found \"a\"; a key needs double quotes\n    1 | {a: 1}\n      |  ^\n"},
      {"{\"a\": 'b'}",
       "f:1:7: error: expected a value, found '''; a string needs double quotes\n    1 | {\"a\": 'b'}\n      |       "
       "^\n"},
      {"{\"a\": True}",
       "f:1:7: error: expected a value, found \"True\"; JSON writes true\n    1 | {\"a\": True}\n      |  "
       "     ^\n"},
      {"[NaN]", "f:1:2: error: NaN is not a JSON number\n    1 | [NaN]\n      |  ^\n"},
      {"[-Infinity]", "f:1:2: error: -Infinity is not a JSON number\n    1 | [-Infinity]\n      |  ^\n"},
      {"[01]", "f:1:2: error: 01 is not a JSON number; write it like 10, -0.5 or 1e-8\n    1 | [01]\n      |  ^\n"},
      {"[1.]", "f:1:2: error: 1. is not a JSON number; write it like 10, -0.5 or 1e-8\n    1 | [1.]\n      |  ^\n"},
      {"[1e999]", "f:1:2: error: 1e999 is too large for a number\n    1 | [1e999]\n      |  ^\n"},
      {"{\"a\": [1\n\n",
       "f:1:9: error: the file ends inside the array opened on line 1\n    1 | {\"a\": [1\n      |     "
       "    ^\n"},
      {"{\"a\":\n",
       "f:1:6: error: the file ends inside the object opened on line 1\n    1 | {\"a\":\n      |      ^\n"},
      {"{\"a\": \"b\n}",
       "f:1:7: error: the string that starts here has no closing quote on its line\n    1 | {\"a\": "
       "\"b\n      |       ^\n"},
      {"[\"\t\"]",
       "f:1:3: error: control character 0x09 in a string; write it as \\u0009\n    1 | [\" \"]\n      |   ^\n"},
      {"[\"\\q\"]",
       "f:1:3: error: unknown escape '\\q' in a string; a backslash is written \\\\\n    1 | [\"\\q\"]\n      "
       "|   ^\n"},
      {"[\"\\u12x4\"]", "f:1:3: error: '\\u' needs four hexadecimal digits\n    1 | [\"\\u12x4\"]\n      |   ^\n"},
      {"[\"\\ud800\"]",
       "f:1:3: error: half of a surrogate pair in a string; characters beyond \\uffff take two \\u "
       "escapes\n    1 | [\"\\ud800\"]\n      |   ^\n"},
      {"[1] // x", "f:1:5: error: JSON has no comments\n    1 | [1] // x\n      |     ^\n"},
      {"[1] 2", "f:1:5: error: expected the end of the file, found '2'\n    1 | [1] 2\n      |     ^\n"},
      {std::string("[1]\0", 4),
       "f:1:4: error: expected the end of the file, found byte 0x00\n    1 | [1] \n      |    "
       "^\n"},
      {"[\"a\xFF\"]", "f:1:4: error: byte 0xFF is not UTF-8 text\n    1 | [\"a\xFF\"]\n      |    ^\n"},
      {"{\"a\": 1, \"b\": {\"c\": 1, \"c\": 2},\n \"a\": 3, \"\\u0061\": 4}",
       "f:1:24: error: duplicate key \"c\"; first given on line 1\n    1 | {\"a\": 1, \"b\": {\"c\": 1, \"c\": 2},\n   "
       "   | "
       "                       ^\n"
       "f:2:2: error: duplicate key \"a\"; first given on line 1\n    2 |  \"a\": 3, \"\\u0061\": 4}\n      |  ^\n"
       "f:2:10: error: duplicate key \"a\"; first given on line 1\n    2 |  \"a\": 3, \"\\u0061\": 4}\n      |         "
       " "
       "^\n"},
      {"{\"a\": 1, \"a\": 2",
       "f:1:10: error: duplicate key \"a\"; first given on line 1\n    1 | {\"a\": 1, \"a\": 2\n      |          ^\n"
       "f:1:16: error: the file ends inside the object opened on line 1\n    1 | {\"a\": 1, \"a\": 2\n      |          "
       " "
       "     ^\n"},
  };
  for (const Row& row : rows) CHECK(refusal(parse_json, row.text) == row.expected);
}

TEST_CASE("a sample cut at every byte is refused, never more than that") {
  const std::string sample = "{\"a\": [1, -2.5e3, true], \"b\\u00e9\": {\"c\": null, \"d\": \"\\ud83d\\ude00 é\"}}";
  for (std::size_t length = 0; length < sample.size(); ++length) {
    CHECK_THROWS_AS((void)parse_json("f", sample.substr(0, length)), Refusal);
  }
  CHECK(refusal(parse_json, sample) == "accepted");
}

TEST_CASE("bounds: depth, number of values, number of faults") {
  const std::string brackets(128, '[');
  CHECK(refusal(parse_json, brackets + std::string(128, ']')) == "accepted");
  CHECK(refusal(parse_hjson, brackets + std::string(128, ']')) == "accepted");
  CHECK(refusal(parse_yaml, brackets + std::string(128, ']')) == "accepted");
  for (const Parse parse : {parse_json, parse_hjson, parse_yaml}) {
    const std::string text = refusal(parse, brackets + "[" + std::string(129, ']'));
    CHECK(text.starts_with("f:1:129: error: nested deeper than 128 levels\n"));
  }
  // One answer, without reading on: a megabyte of brackets nests a million deep.
  CHECK(refusal(parse_json, std::string(1 << 20, '[')).starts_with("f:1:129: error: nested deeper than 128 levels\n"));
  std::string many = "[0";
  for (std::size_t i = 1; i < kMostValues; ++i) many += ",0";
  CHECK(refusal(parse_json, many + "]").starts_with("f:1:4000000: error: more than 2000000 values\n"));
  std::string doubled = "{\"a\": 0";
  for (int i = 0; i < 25; ++i) doubled += ", \"a\": 0";
  try {
    (void)parse_json("f", doubled + "}");
    FAIL("accepted");
  } catch (const Refusal& refused) {
    CHECK(refused.diagnostics().size() == 21);
    CHECK(refused.diagnostics().back().message == "5 more faults are not shown");
  }
}

TEST_CASE("a fault far along a long line shows what stands there") {
  std::string text = "[" + std::string(10'000, ' ') + "oops]";
  const std::string shown = refusal(parse_json, text);
  CHECK(shown == "f:1:10002: error: expected a value, found \"oops\"; a string needs double quotes\n    1 | " +
                     std::string(95, ' ') + "oops]\n      | " + std::string(95, ' ') + "^\n");
}

TEST_CASE("Hjson reads what the package hjson 3.1.0 reads") {
  const Row rows[] = {
      {"", "{}"},
      {"# only a comment", "{}"},
      {"{a: 1, b: 2,}", "{\"a\": 1, \"b\": 2}"},
      {"a: 1\nb: [1\n2,\n3]\n", "{\"a\": 1, \"b\": [1, 2, 3]}"},
      {"{\n a: plain, to the end # really\n b: 'it\\'s \"so\"'\n}",
       "{\"a\": \"plain, to the end # really\", \"b\": \"it's \"so\"\"}"},
      {"{a: true, b: false # c\n c: null // d\n d: true story\n}",
       "{\"a\": true, \"b\": false, \"c\": null, \"d\": \"true story\"}"},
      {"{a: 5 /* x */, b: -3, c: 01\n d: 1 2\n e: .5\n f: 5.\n}",
       "{\"a\": 5, \"b\": -3, \"c\": \"01\", \"d\": \"1 2\", \"e\": \".5\", \"f\": \"5.\"}"},
      {"{\"a\": \"x\" \"b\" /* c */ : \"y\"}", "{\"a\": \"x\", \"b\": \"y\"}"},
      {"{\n  a:\n    '''\n    one\n      two\n    '''\n}", "{\"a\": \"one\n  two\"}"},
      {"{\n  a: '''x'''\n}", "{\"a\": \"x\"}"},
      {"{a:\nb\n}", "{\"a\": \"b\"}"},
      {"{a : 1, b.c/d#e: 2}", "{\"a\": 1, \"b.c/d#e\": 2}"},
      {"[]", "[]"},
      {"{a: NaN\n}", "{\"a\": \"NaN\"}"},
      {"{url: http://x/y\n}", "{\"url\": \"http://x/y\"}"},
      {"{a: 18446744073709551616}", ""},
  };
  for (const Row& row : rows) {
    const Document document = parse_hjson("f", row.text);
    if (!row.expected.empty()) CHECK(plain(document.root) == row.expected);
  }
  const Document exponent = parse_hjson("f", "{a: 5e8, b: 18446744073709551616}");
  CHECK(exponent.root.members[0].value.is(Kind::Real));
  CHECK(exponent.root.members[0].value.real == 5e8);
  CHECK(exponent.root.members[1].value.huge);
}

TEST_CASE("Hjson values keep their place in the original text") {
  const std::string text = "# head\nstage: 3 // three\n'k': 'it\\'s'\nlist: [ a b\n  2 ]";
  const Document document = parse_hjson("f", text);
  CHECK(show(document.root) ==
        fmt::format("{{\"stage\"@{}: 3@{}, \"k\"@{}: \"it's\"@{}, \"list\"@{}: [\"a b\"@{}, 2@{}]@{}}}@7",
                    text.find("stage"), text.find("3 //"), text.find("'k'"), text.find("'it"), text.find("list"),
                    text.find("a b"), text.find("2 ]"), text.find("[ a")));
}

TEST_CASE("Hjson faults") {
  const Row rows[] = {
      {"{a: 1\n a: 2}", "f:2:2: error: duplicate key \"a\"; first given on line 1\n    2 |  a: 2}\n      |  ^\n"},
      {"{a b: 1}",
       "f:1:3: error: blank in a key; put a key with blanks in quotes, or is ':' missing?\n    1 | {a b: 1}\n "
       "     |   ^\n"},
      {"{a: }", "f:1:5: error: expected a value, found '}'\n    1 | {a: }\n      |     ^\n"},
      {"{a: 1,, b: 2}",
       "f:1:7: error: expected a key, found ','; a key with {}[],: needs quotes\n    1 | {a: 1,, b: 2}\n "
       "     |       ^\n"},
      {"{: 1}", "f:1:2: error: expected a key, found ':'; an empty key needs quotes\n    1 | {: 1}\n      |  ^\n"},
      {"{a: 1", "f:1:6: error: the file ends inside the object opened on line 1\n    1 | {a: 1\n      |      ^\n"},
      {"[1", "f:1:3: error: the file ends inside the array opened on line 1\n    1 | [1\n      |   ^\n"},
      {"{a: x}", "f:1:7: error: the file ends inside the object opened on line 1\n    1 | {a: x}\n      |       ^\n"},
      {"{a", "f:1:3: error: expected ':' after the key, found the end of the file\n    1 | {a\n      |   ^\n"},
      {"a:\n", "f:1:3: error: expected a value, found the end of the file\n    1 | a:\n      |   ^\n"},
      {"{a: 1} b", "f:1:8: error: expected the end of the file, found 'b'\n    1 | {a: 1} b\n      |        ^\n"},
      {"{/* a", "f:1:2: error: the comment that starts here has no closing '*/'\n    1 | {/* a\n      |  ^\n"},
      {"{\na: '''b", "f:2:4: error: the string that starts here has no closing '''\n    2 | a: '''b\n      |    ^\n"},
      {"{a: '''b'''}",
       "f:1:5: error: a ''' string on the first line; hjson gives it an indent by chance; start it on a "
       "later line\n    1 | {a: '''b'''}\n      |     ^\n"},
      {"{a: 'b}",
       "f:1:5: error: the string that starts here has no closing quote on its line\n    1 | {a: 'b}\n      |  "
       "   ^\n"},
      {"{a: 1e999}", "f:1:5: error: 1e999 is too large for a number\n    1 | {a: 1e999}\n      |     ^\n"},
      {"5", "f:1:2: error: expected ':' after the key, found the end of the file\n    1 | 5\n      |  ^\n"},
  };
  for (const Row& row : rows) CHECK(refusal(parse_hjson, row.text) == row.expected);
}

TEST_CASE("DeepSpeed's own samples, with comments and trailing commas") {
  const std::string folder = DSPLAN_SOURCE_DIR "/tests/data/deepspeed/";
  const auto read = [&](const std::string& name) { return parse_hjson(name, read_file(folder + name)); };
  const Document fp16 = read("overview-fp16.json");
  CHECK(fp16.root.find("train_batch_size")->integer == 512);
  CHECK(fp16.root.find("optimizer")->find("params")->find("eps")->real == 1e-8);
  CHECK(fp16.root.find("zero_optimization")->find("stage")->integer == 2);
  const Document second = read("overview-stage2.json");
  CHECK(second.root.find("zero_optimization")->find("reduce_bucket_size")->real == 2e8);
  const Document third = read("overview-stage3.json");
  const Value& zero = *third.root.find("zero_optimization");
  CHECK(zero.find("offload_optimizer")->find("device")->string == "cpu");
  CHECK(zero.find("reduce_bucket_size")->string == "auto");
  CHECK(third.text.substr(zero.find("sub_group_size")->offset, 3) == "1e9");
  CHECK(refusal(parse_json, third.text).find("JSON has no comments") != std::string::npos);
}

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
      fmt::format(
          "{{\"é\"@{0}: \"x\"@{1}, \"b\"@{2}: [\"é\"@{3}, 2@{4}]@{5}, \"c\"@{6}: [{{\"d\"@{7}: 1@{8}}}@{7}]@{9}}}@{0}",
          text.find("\"é"), text.find("x\n"), text.find("b:"), text.find("é,"), text.find("2]"), text.find("[é"),
          text.find("c:"), text.find("d:"), text.find("1\n"), text.find("- d")));
}

TEST_CASE("YAML faults") {
  const Row rows[] = {
      {"a: 1\na: 2\n", "f:2:1: error: duplicate key \"a\"; first given on line 1\n    2 | a: 2\n      | ^\n"},
      {"a: &x 1\nb: *x\n",
       "f:1:4: error: anchor &x is not read here\n    1 | a: &x 1\n      |    ^\n"
       "f:2:4: error: alias *x is not read here; write the value again\n    2 | b: *x\n      |    ^\n"},
      {"a: !x 1", "f:1:4: error: tag \"!x\" is not read here\n    1 | a: !x 1\n      |    ^\n"},
      {"a: !!int x", "f:1:4: error: \"x\" is not what its tag !!int says\n    1 | a: !!int x\n      |    ^\n"},
      {"# x\n%TAG !a! b\n---\n1", "f:2:1: error: %TAG directives are not read here\n    2 | %TAG !a! b\n      | ^\n"},
      {"a\n---\nb", "f:2:1: error: a second document in one file\n    2 | ---\n      | ^\n"},
      {"1: 2", "f:1:1: error: key \"1\" is an integer to YAML; put it in quotes\n    1 | 1: 2\n      | ^\n"},
      {"[1]: 2", "f:1:1: error: a key must be a string\n    1 | [1]: 2\n      | ^\n"},
      {"<<: {a: 1}",
       "f:1:1: error: \"<<\" is YAML's merge key, which is not read here\n    1 | <<: {a: 1}\n      | ^\n"},
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

TEST_CASE("files: missing, folders, pipes, too large") {
  const auto reading = [](const std::string& path, std::size_t most = kLargestText) -> std::string {
    try {
      return "read " + std::to_string(read_file(path, most).size());
    } catch (const Refusal& refused) {
      return refused.what();
    }
  };
  const Scratch file("file.json");
  CHECK(reading(file.path) == file.path + ": error: no such file\n");
  CHECK(reading("/") == "/: error: is a folder; name a file in it\n");
  CHECK(reading("/dev/null") == "/dev/null: error: is not a regular file\n");
  CHECK(reading("") == "error: not a file name\n");
  file.write("12345");
  CHECK(reading(file.path, 5) == "read 5");
  CHECK(reading(file.path, 4) == file.path + ": error: larger than 4 bytes\n");
  // Refused by its size alone: a sparse file of 1 GiB takes no room.
  std::filesystem::resize_file(file.path, std::uintmax_t{1} << 30);
  CHECK(reading(file.path) == file.path + ": error: larger than 64 MiB\n");
  // Claims no size, but has content.
  CHECK(reading("/proc/self/status") != "read 0");
  const Scratch pipe("pipe.json");
  REQUIRE(::mkfifo(pipe.path.c_str(), 0600) == 0);
  CHECK(reading(pipe.path) == pipe.path + ": error: is not a regular file\n");
}

TEST_CASE("documents by extension") {
  const auto kind = [](const std::string& name, const std::string& text) -> std::string {
    const Scratch file(name);
    file.write(text);
    try {
      return plain(read_document(file.path).root);
    } catch (const Refusal& refused) {
      return refused.diagnostics().front().message;
    }
  };
  CHECK(kind("a.json", "{\"a\": 1}") == "{\"a\": 1}");
  CHECK(kind("a.JSON", "{a: 1}") == "expected a key, found \"a\"");
  CHECK(kind("a.hjson", "{a: 1}") == "{\"a\": 1}");
  CHECK(kind("a.yaml", "a: yes") == "{\"a\": true}");
  CHECK(kind("a.yml", "a: yes") == "{\"a\": true}");
  CHECK(kind("a.txt", "a") == "not a .json, .hjson, .yaml or .yml file");
  CHECK(kind("json", "a") == "not a .json, .hjson, .yaml or .yml file");
}
