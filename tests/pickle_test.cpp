// Pickles as data: what is read, what is refused and where, and that hostile input costs no more than its bytes.
#include <doctest/doctest.h>

#include <string>

#include "io/pickle.h"

using namespace dsplan;
using namespace std::string_literals;
using Kind = PickleNode::Kind;

namespace {

Pickle parsed(const std::string& body) { return read_pickle("p.pickle", "\x80\x04" + body + "."); }

std::string refusal_of(const std::string& text) {
  try {
    (void)read_pickle("p.pickle", text);
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "accepted";
}

// A value as one line, to a depth that a value which holds itself cannot exceed.
std::string shown(const Pickle& pickle, PickleId id, int depth = 0) {
  const PickleNode& node = pickle.node(id);
  if (depth > 4) return "...";
  switch (node.kind) {
    case Kind::None: return "None";
    case Kind::Bool: return node.number != 0 ? "True" : "False";
    case Kind::Integer: return std::to_string(node.number);
    case Kind::Huge: return "huge";
    case Kind::Real: return std::to_string(pickle.real(id));
    case Kind::String: return "'" + std::string(pickle.string(id)) + "'";
    case Kind::Binary: return "b'" + std::string(pickle.string(id)) + "'";
    case Kind::List:
    case Kind::Tuple:
    case Kind::Dict: break;
  }
  std::string text = node.kind == Kind::List ? "[" : node.kind == Kind::Tuple ? "(" : "{";
  for (const PickleId item : pickle.items(id)) text += shown(pickle, item, depth + 1) + " ";
  return text + (node.kind == Kind::List ? "]" : node.kind == Kind::Tuple ? ")" : "}");
}

std::string shown(const std::string& body) {
  const Pickle pickle = parsed(body);
  return shown(pickle, pickle.root);
}

}  // namespace

TEST_CASE("every opcode that plain data needs") {
  const std::vector<std::pair<std::string, std::string>> kTable = {
      {"N", "None"},
      {"\x88", "True"},
      {"\x89", "False"},
      {"K\xff", "255"},
      {"M\x01\x02", "513"},
      {"J\xfe\xff\xff\xff", "-2"},
      {"\x8a\x00"s, "0"},
      {"\x8a\x01\x80", "-128"},
      {"\x8a\x06\x00\x00\x00\x00\x00\x7f"s, "139637976727552"},
      {"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"s, "-9223372036854775808"},
      {"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00"s, "huge"},
      {"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\xff"s, "-1"},
      {"\x8b\x02\x00\x00\x00\x00\x01"s, "256"},
      {"G\x3f\xf8\x00\x00\x00\x00\x00\x00"s, "1.500000"},
      {"X\x02\x00\x00\x00ok"s, "'ok'"},
      {"\x8c\x02ok", "'ok'"},
      {"\x8d\x02\x00\x00\x00\x00\x00\x00\x00ok"s, "'ok'"},
      {"\x8c\x02\xc3\xbc", "'\xc3\xbc'"},
      {"C\x02\xff\xfe", "b'\xff\xfe'"},
      {"B\x01\x00\x00\x00z"s, "b'z'"},
      {"\x8e\x01\x00\x00\x00\x00\x00\x00\x00z"s, "b'z'"},
      {"\x96\x01\x00\x00\x00\x00\x00\x00\x00z"s, "b'z'"},
      {"]", "[]"},
      {"]K\x01\x61", "[1 ]"},
      {"](K\x01K\x02\x65", "[1 2 ]"},
      {"(K\x01K\x02l", "[1 2 ]"},
      {")", "()"},
      {"K\x01\x85", "(1 )"},
      {"K\x01K\x02\x86", "(1 2 )"},
      {"K\x01K\x02K\x03\x87", "(1 2 3 )"},
      {"(K\x01K\x02K\x03K\x04t", "(1 2 3 4 )"},
      {"}", "{}"},
      {"}\x8c\x01kK\x01s", "{'k' 1 }"},
      {"}(\x8c\x01kK\x01\x8c\x01lNu", "{'k' 1 'l' None }"},
      {"(\x8c\x01kK\x01\x64", "{'k' 1 }"},
      {"](K\x07\x94h\x00h\x00\x65"s, "[7 7 7 ]"},
      {"](K\x07q\x05h\x05\x65"s, "[7 7 ]"},
      {"](K\x07r\x05\x00\x00\x00j\x05\x00\x00\x00\x65"s, "[7 7 ]"},
      {"K\x01K\x02\x30", "1"},
      {"K\x01(K\x02\x31", "1"},
      {"K\x01\x32\x86", "(1 1 )"},
      {"\x95\x02\x00\x00\x00\x00\x00\x00\x00K\x01"s, "1"},
      // A list that holds itself is a value like any other to who does not walk it.
      {"]\x94h\x00\x61"s, "[[[[[... ] ] ] ] ]"},
  };
  for (const auto& [body, expected] : kTable) {
    CAPTURE(expected);
    CHECK(shown(body) == expected);
  }
}

TEST_CASE("what follows STOP is not read") { CHECK(parsed("K\x01.garbage\xff").nodes.size() == 1); }

TEST_CASE("code, old protocols and broken files are refused with the byte") {
  const std::vector<std::pair<std::string, std::string>> kTable = {
      {"", "at byte 0: not a pickle of protocol 2 to 5"},
      {"(lp0\n.", "at byte 0: not a pickle of protocol 2 to 5"},
      {"\x80\x06N.", "at byte 0: protocol 6: dsplan reads 2 to 5"},
      {"\x80\x04\x63os\nsystem\n", "at byte 2: opcode GLOBAL is refused: it would run code"},
      {"\x80\x04\x8c\x02os\x8c\x06system\x93.", "at byte 14: opcode STACK_GLOBAL is refused: it would run code"},
      {"\x80\x04NNR.", "at byte 4: opcode REDUCE is refused: it would run code"},
      {"\x80\x04I1\n.", "at byte 2: opcode INT is refused: it is of protocol 0 or 1"},
      {"\x80\x04\x8f.", "at byte 2: opcode EMPTY_SET is refused"},
      {"\x80\x05\x97.", "at byte 2: opcode NEXT_BUFFER is refused"},
      {"\x80\x04\xff.", "at byte 2: 0xff is no opcode"},
      {"\x80\x04N", "at byte 3: the file ends in the middle of a value"},
      {"\x80\x04K", "at byte 2: the file ends in the middle of a value"},
      {"\x80\x04X\xff\xff\xff\xffz", "at byte 2: the file ends in the middle of a value"},
      {"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffz", "at byte 2: the file ends in the middle of a value"},
      {"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fz", "at byte 2: the file ends in the middle of a value"},
      {"\x80\x04\x8b\xff\xff\xff\xffz", "at byte 2: a LONG4 of negative length"},
      {"\x80\x04\x8b\xff\xff\xff\x7fz", "at byte 2: the file ends in the middle of a value"},
      {"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff.", "at byte 2: the file ends in the middle of a frame"},
      {"\x80\x04\x8c\x01\xff.", "at byte 2: a string that is not UTF-8"},
      {"\x80\x04.", "at byte 2: STOP where not exactly one value is left"},
      {"\x80\x04NN.", "at byte 4: STOP where not exactly one value is left"},
      {"\x80\x04(N.", "at byte 4: STOP where not exactly one value is left"},
      {"\x80\x04\x65.", "at byte 2: there is no mark"},
      {"\x80\x04(e.", "at byte 3: a container is missing on the stack"},
      {"\x80\x04N(Ne.", "at byte 5: None where a list is needed"},
      {"\x80\x04}(Ne.", "at byte 5: a dict where a list is needed"},
      {"\x80\x04]Na.extra", "accepted"},
      {"\x80\x04Na.", "at byte 3: a container is missing on the stack"},
      {"\x80\x04](Na.", "at byte 5: a container is missing on the stack"},
      {"\x80\x04}(Nu.", "at byte 5: a key without its value"},
      {"\x80\x04}]Ns.", "at byte 5: a list is no key of a dict"},
      {"\x80\x04\x94.", "at byte 2: a value is missing on the stack"},
      {"\x80\x04h\x07.", "at byte 2: an unknown memo number"},
      {"\x80\x04Nr\xff\xff\xff\xff.", "at byte 3: a memo number beyond what the file could hold"},
      {"\x80\x04\x87.", "at byte 2: a value is missing on the stack"},
      {"\x80\x04\x32.", "at byte 2: a value is missing on the stack"},
  };
  for (const auto& [text, expected] : kTable) {
    CAPTURE(expected);
    const std::string said = refusal_of(text);
    CHECK_MESSAGE(said.find(expected) != std::string::npos, said);
  }
}

TEST_CASE("depth and repetition cost no stack") {
  // A million lists inside each other, and a million references to one of them.
  std::string deep(1'000'000, ']');
  deep += std::string(999'999, 'a');
  CHECK(parsed(deep).nodes.size() == 1'000'000);
  std::string wide = "](]q" + "\x00"s;
  for (int i = 0; i < 1'000'000; ++i) wide += "h\x00"s;
  CHECK(parsed(wide + "e").items(0).size() == 1'000'001);
  CHECK(refusal_of("\x80\x04" + std::string(200'000, '(')).find("too many containers are open") != std::string::npos);
}

TEST_CASE("what the writer writes is read back") {
  PickleWriter writer;
  writer.begin_list();
  const std::vector<std::int64_t> numbers = {
      0,        1,          255,        256,         65'535,          65'536,           -1,
      -129,     2147483647, 2147483648, -2147483649, 140737488355328, -140737488355329, INT64_MAX,
      INT64_MIN};
  for (const std::int64_t number : numbers) writer.integer(number);
  writer.end();
  const Pickle pickle = read_pickle("w", writer.finish());
  REQUIRE(pickle.items(pickle.root).size() == numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    CHECK(pickle.node(pickle.items(pickle.root)[i]).number == numbers[i]);
  }
}

TEST_CASE("batches, shared strings and shared values") {
  PickleWriter writer;
  writer.begin_list();
  std::uint32_t shared = 0;
  for (int i = 0; i < 2500; ++i) {
    if (i == 1) writer.share(shared);
    writer.begin_dict();
    writer.key("number");
    writer.integer(i);
    writer.key("pair");
    writer.pair(i, -i);
    writer.key("half");
    writer.real(0.5);
    writer.key("yes");
    writer.boolean(true);
    writer.end();
    if (i == 0) shared = writer.remember();
  }
  writer.end();
  const std::string text = writer.finish();
  const Pickle pickle = read_pickle("w", text);
  const auto items = pickle.items(pickle.root);
  REQUIRE(items.size() == 2501);
  CHECK(items[0] == items[1]);
  CHECK(shown(pickle, items[2500]) == "{'number' 2499 'pair' (2499 -2499 ) 'half' 0.500000 'yes' True }");
  // Each string stands in the file once.
  CHECK(text.find("number") == text.rfind("number"));
}
