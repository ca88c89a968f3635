#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <random>

#include "core/format.h"
#include "io/text.h"
#include "io_show.h"

using namespace dsplan;
using Kind = Value::Kind;

namespace {

// A file that is gone when the test ends.
struct Scratch {
  std::string path;
  explicit Scratch(const std::string& name)
      : path((std::filesystem::temp_directory_path() / dsplan::formatted("dsplan-{}-{}", ::getpid(), name)).string()) {}
  ~Scratch() { std::filesystem::remove_all(path); }
  void write(const std::string& text) const {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    REQUIRE(file != nullptr);
    REQUIRE(std::fwrite(text.data(), 1, text.size(), file) == text.size());
    std::fclose(file);
  }
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
        shown += dsplan::formatted("\"k{}", i);
        const std::size_t key_at = out.size();
        out += dsplan::formatted("\"k{}\"", i);
        shown += dsplan::formatted("\"@{}: ", key_at);
        blanks();
        out += ':';
      }
      shown += random_json(random, depth + 1, out);
    }
    blanks();
    out += object ? '}' : ']';
    shown = (object ? '{' : '[') + shown + (object ? '}' : ']');
  }
  const std::string placed = dsplan::formatted("{}@{}", shown, at);
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

TEST_CASE("text that is not UTF-8 is refused at its first bad byte") {
  const std::string bad[] = {"\x80",
                             "\xC0\x80",
                             "\xC3",
                             "\xE0\x80\x80",
                             "\xED\xA0\x80",
                             "\xE2\x82",
                             "\xF0\x80\x80\x80",
                             "\xF4\x90\x80\x80",
                             "\xF5\x80\x80\x80"};
  for (const std::string& bytes : bad) {
    // At any distance from the start, since eight plain characters are judged at once.
    for (std::size_t before = 0; before < 10; ++before) {
      const std::string text = "[\"" + std::string(before, 'a') + bytes + "\"]";
      const std::string expected = dsplan::formatted("f:1:{}: error: byte 0x{:02X} is not UTF-8 text\n", before + 3,
                                                     static_cast<unsigned char>(bytes[0]));
      CHECK(refusal(parse_json, text).starts_with(expected));
    }
  }
  CHECK(refusal(parse_json, "[\"é€😀\"]") == "accepted");
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
  CHECK(kind("a.txt", "a") == "not a .json, .hjson, .yaml, .yml or .toml file");
  CHECK(kind("json", "a") == "not a .json, .hjson, .yaml, .yml or .toml file");
}
