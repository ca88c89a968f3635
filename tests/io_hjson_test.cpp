#include <doctest/doctest.h>

#include <utility>

#include "io/text.h"
#include "io_show.h"
#include "paths.h"

using namespace dsplan;
using Kind = Value::Kind;

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
        dsplan::formatted("{{\"stage\"@{}: 3@{}, \"k\"@{}: \"it's\"@{}, \"list\"@{}: [\"a b\"@{}, 2@{}]@{}}}@7",
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
  const std::string folder = test_paths::source_dir() + "/tests/data/deepspeed/";
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
