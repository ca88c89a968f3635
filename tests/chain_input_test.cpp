// Chain files: what is read, to the last digit, and what is refused, where and why.
#include <doctest/doctest.h>

#include "chain_file.h"
#include "chains.h"
#include "core/error.h"
#include "io/plan_inputs.h"
#include "io/text.h"

using namespace dsplan;
using dsplan::test::chain_json;

namespace {

Chain read(const std::string& text) { return read_chain(parse_json("chain.json", text), "chain"); }

std::string refusal(const std::string& text) {
  try {
    (void)read(text);
  } catch (const Refusal& refused) {
    return refused.what();
  }
  return {};
}

const std::string kStage =
    R"("output": 2, "saved": 34, "gradient": 2, "forward_time": 1, "backward_time": 2, "forward_temporary": 3, "backward_temporary": 4)";

std::string file(const std::string& stages, const std::string& head = R"("input_bytes": 2, "input_gradient": 5)") {
  return R"({"dsplan": 1, "kind": "chain", "source": "test", )" + head + ",\n\"stages\": [\n" + stages + "\n]}";
}
std::string one(const std::string& more) { return file("{" + kStage + more + "}"); }
std::string times(const std::string& forward, const std::string& backward) {
  return R"({"output": 2, "saved": 34, "gradient": 2, "forward_time": )" + forward + R"(, "backward_time": )" +
         backward + "}";
}

}  // namespace

TEST_CASE("a chain as its file says it") {
  const Chain chain = read(file("{" + kStage + R"(, "gathered": 9, "gather_time": 7, "options": [
    {"name": "core_attn", "saved": 20, "time": 1, "forward_temporary": 5, "backward_temporary": 14}]},
    {"output": 0, "saved": 0, "gradient": 0, "forward_time": 0, "backward_time": 0})"));
  CHECK(chain.source == "test");
  CHECK(chain.input == Bytes(2));
  CHECK(chain.input_gradient == Bytes(5));
  REQUIRE(chain.stages.size() == 2);
  const ChainStage& stage = chain.stages[0];
  CHECK(stage.output == Bytes(2));
  CHECK(stage.saved == Bytes(34));
  CHECK(stage.gradient == Bytes(2));
  CHECK(stage.forward_time == Ticks(1));
  CHECK(stage.backward_time == Ticks(2));
  CHECK(stage.forward_temporary == Bytes(3));
  CHECK(stage.backward_temporary == Bytes(4));
  CHECK(stage.gathered == Bytes(9));
  CHECK(stage.gather_time == Ticks(7));
  REQUIRE(stage.options.size() == 1);
  CHECK(stage.options[0].name == "core_attn");
  CHECK(stage.options[0].saved == Bytes(20));
  CHECK(stage.options[0].backward_temporary == Bytes(14));
  CHECK(chain.gathers());
  // What is written is read back, and written the same.
  const std::string written = chain_json(chain);
  CHECK(chain_json(read(written)) == written);
}

TEST_CASE("times are decimal numbers and are taken digit by digit") {
  struct Row {
    const char* forward;
    const char* backward;
    std::int64_t ticks, back;
    int digits;
    bool rounded;
  };
  for (const Row& row :
       {Row{"1", "2", 1, 2, 0, false}, Row{"0.1", "0.25", 10, 25, 2, false}, Row{"1e3", "2.50", 10000, 25, 1, false},
        Row{"0", "0.0", 0, 0, 0, false}, Row{"1.5e-3", "0.0000002", 15000, 2, 7, false},
        Row{"10", "100", 10, 100, 0, false},
        Row{"0.1000000000000000055", "1", 100000000000000, 1000000000000000, 15, true},
        Row{"1e18", "2e18", 100000000000000, 200000000000000, -4, false},
        Row{"1000000000000000001", "0", 1000000000000000, 0, -3, true}, Row{"1e-30", "3e-30", 1, 3, 30, false}}) {
    CAPTURE(row.forward);
    const Chain chain = read(file(times(row.forward, row.backward)));
    CHECK(chain.digits == row.digits);
    CHECK(chain.stages[0].forward_time == Ticks(row.ticks));
    CHECK(chain.stages[0].backward_time == Ticks(row.back));
    CHECK(chain.times_rounded == row.rounded);
    CHECK(chain.time(chain.stages[0].forward_time) == doctest::Approx(std::stod(row.forward)).epsilon(1e-14));
  }
}

TEST_CASE("faults point at their places, several together") {
  CHECK(refusal(file(R"({"output": 2, "saved": 1, "gradient": 2, "forward_time": -1, "backward_time": "x"},
{"output": 2, "svaed": 34, "gradient": 2.5, "forward_time": 1, "backward_time": 2})")) ==
        R"(chain.json:3:58: error: "forward_time" must be at least 0, not -1
    3 | {"output": 2, "saved": 1, "gradient": 2, "forward_time": -1, "backward_time": "x"},
      |                                                          ^
chain.json:3:79: error: "backward_time" must be a number, not a string
    3 | {"output": 2, "saved": 1, "gradient": 2, "forward_time": -1, "backward_time": "x"},
      |                                                                               ^
chain.json:4:1: error: "saved" is missing
    4 | {"output": 2, "svaed": 34, "gradient": 2.5, "forward_time": 1, "backward_time": 2}
      | ^
chain.json:4:40: error: "gradient" must be an integer, not a number
    4 | {"output": 2, "svaed": 34, "gradient": 2.5, "forward_time": 1, "backward_time": 2}
      |                                        ^
chain.json:4:15: error: unknown key "svaed" in a stage; did you mean "saved"?
    4 | {"output": 2, "svaed": 34, "gradient": 2.5, "forward_time": 1, "backward_time": 2}
      |               ^
)");
}

TEST_CASE("bad input") {
  struct Case {
    const char* what;
    std::string text;
    const char* expected;
  };
  const std::string head = R"({"dsplan": 1, "kind": "chain", "source": "x", "input_bytes": 1, "input_gradient": 1)";
  const std::string large = "288230376151711744";
  const Case cases[] = {
      {"root", "[]", "a chain must be an object"},
      {"kind", R"({"dsplan": 1, "kind": "graph", "source": "x"})", "\"kind\" must be \"chain\""},
      {"version", R"({"dsplan": 2, "kind": "chain", "source": "x"})", "file version 2 is not known"},
      {"source", R"({"dsplan": 1, "kind": "chain"})", "\"source\" is missing"},
      {"no stages", head + "}", "\"stages\" is missing"},
      {"empty", head + R"(, "stages": []})", "0 stages; a chain has from 1 to 10000"},
      {"stages", head + R"(, "stages": {}})", "\"stages\" must be an array"},
      {"stage", head + R"(, "stages": [3]})", "stage 1 must be an object, not an integer"},
      {"input", file("{" + kStage + "}", R"("input_gradient": 5)"), "\"input_bytes\" is missing"},
      {"input gradient", file("{" + kStage + "}", R"("input_bytes": 5)"), "\"input_gradient\" is missing"},
      {"no saved", file(R"({"output": 2, "gradient": 2, "forward_time": 1, "backward_time": 2})"),
       "\"saved\" is missing"},
      {"no time", file(R"({"output": 2, "saved": 2, "gradient": 2, "forward_time": 1})"),
       "\"backward_time\" is missing"},
      {"real bytes", file(R"({"output": 2.5, "saved": 3, "gradient": 2, "forward_time": 1, "backward_time": 2})"),
       "\"output\" must be an integer, not a number"},
      {"negative bytes", file(R"({"output": 2, "saved": 3, "gradient": -2, "forward_time": 1, "backward_time": 2})"),
       "\"gradient\" must be from 0 to"},
      {"saved below output", file(R"({"output": 4, "saved": 3, "gradient": 2, "forward_time": 1, "backward_time": 2})"),
       "\"saved\" is 3, but it contains the stage's output of 4 bytes"},
      {"negative time", file(times("-0.5", "1")), "\"forward_time\" must be at least 0, not -0.5"},
      {"time as text", file(times("\"1\"", "1")), "\"forward_time\" must be a number, not a string"},
      {"unknown key", one(R"(, "forward_tmp": 1)"), "unknown key \"forward_tmp\" in a stage"},
      {"near key",
       file(R"({"output": 2, "svaed": 3, "saved": 3, "gradient": 2, "forward_time": 1, "backward_time": 2})"),
       "did you mean \"saved\"?"},
      {"unknown key of the chain", file("{" + kStage + "}", R"("input_bytes": 1, "input_gradient": 1, "budget": 3)"),
       "unknown key \"budget\" in the chain"},
      {"one too large",
       file(R"({"output": 1, "saved": 9223372036854775808, "gradient": 2, "forward_time": 1, "backward_time": 2})"),
       "does not fit in 63 bits"},
      {"too large together", file("{" + kStage + "}", "\"input_bytes\": " + large + ", \"input_gradient\": " + large),
       "their sum must stay below 2^58 bytes"},
      {"times too large", file(times("1e300", "1e300")), "the times of the stages are too large together"},
      {"option", one(R"(, "options": [1])"), "an option must be an object"},
      {"options", one(R"(, "options": {})"), "\"options\" must be an array"},
      {"option without a name",
       one(R"(, "options": [{"saved": 3, "time": 1, "forward_temporary": 0, "backward_temporary": 0}])"),
       "an option is called by it"},
      {"option's transient", one(R"(, "options": [{"name": "a", "saved": 3, "time": 1, "forward_temporary": 0}])"),
       "\"backward_temporary\" is missing"},
      {"option's bytes",
       one(R"(, "options": [{"name": "a", "saved": 1, "time": 1, "forward_temporary": 0, "backward_temporary": 0}])"),
       "\"saved\" is 1, but it contains the stage's output of 2 bytes"},
      {"option twice",
       one(R"(, "options": [{"name": "a", "saved": 3, "time": 1, "forward_temporary": 0, "backward_temporary": 0},
           {"name": "a", "saved": 3, "time": 1, "forward_temporary": 0, "backward_temporary": 0}])"),
       "two options of this stage are called \"a\""},
  };
  for (const Case& row : cases) {
    CAPTURE(row.what);
    const std::string said = refusal(row.text);
    CHECK_MESSAGE(said.find(row.expected) != std::string::npos, said);
  }
}
