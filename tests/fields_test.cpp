// One description, three visitors: what is written is read back, and the schema says the same of it.
#include "io/fields.h"

#include <doctest/doctest.h>

#include "core/receipt.h"
#include "io/own_file.h"
#include "io/text.h"
#include "report/compare.h"
#include "report/prediction_file.h"

using namespace dsplan;

namespace {

struct Shelf {
  std::string label;
  std::int64_t books = 0;
};

// Something of everything that a file may hold.
struct Library {
  std::string source = "by hand";
  std::string city;
  std::optional<std::string> street;
  Bytes size;
  std::optional<Bytes> limit;
  double rent = 0;
  bool open = false;
  std::optional<std::int64_t> visitors;  // Its key is not always there.
  Verdict verdict = Verdict::Unknown;
  std::vector<std::string> words;
  std::vector<Shelf> shelves;
  std::optional<Shelf> returns;
  std::optional<std::vector<Shelf>> lent;
  std::optional<Document> rules;
};

void describe_shelf(Fields& fields, Shelf& shelf) {
  fields("label", shelf.label);
  fields("books", shelf.books, 0, 99);
}

void describe_library(Fields& fields, Library& library) {
  describe_head(fields, "library", library.source);
  fields("city", library.city);
  fields("street", library.street);
  fields("size", library.size);
  fields("limit", library.limit);
  fields("rent", library.rent);
  fields("open", library.open);
  fields(Key::if_there("visitors", library.visitors.has_value()), library.visitors);
  fields.named("verdict", library.verdict, {Verdict::Fits, Verdict::Unknown});
  fields.texts("words", library.words, "a word");
  fields.list("shelves", library.shelves, {"a shelf", FieldLine::Same},
              [&](Shelf& one) { describe_shelf(fields, one); });
  fields.derived("count", static_cast<std::int64_t>(library.shelves.size()));
  fields.object("returns", library.returns, {"the shelf of returns"}, [&](Shelf& one) { describe_shelf(fields, one); });
  fields.list("lent", library.lent, {"a lent shelf"}, [&](Shelf& one) { describe_shelf(fields, one); });
  fields.document("rules", library.rules);
}

Library full() {
  Library library;
  library.city = "Ulm \"an der Donau\"";
  library.size = Bytes((std::int64_t{1} << 53) + 1);  // No double holds it.
  library.rent = 3;
  library.open = true;
  library.visitors = 7;
  library.verdict = Verdict::Fits;
  library.words = {"plan", "--gpus", "8", "--strict", "--out"};
  library.shelves = {{"a", 1}, {"b", 99}};
  library.lent.emplace();
  library.rules = parse_json("rules.json", R"({"b": [1, 2.0], "a": {"c": [{}], "d": null}})");
  return library;
}

std::string text_of(const Library& library, Layout layout) {
  return written([&](Fields& fields) { describe_library(fields, described(library)); }, layout);
}

Library read(const std::string& text) {
  const Document document = parse_json("library.json", text);
  Library library;
  read_fields(document, "a library", [&](Fields& fields) { describe_library(fields, library); });
  return library;
}

std::string refusal_of(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  try {
    (void)read(text.replace(at, from.size(), to));
  } catch (const Refusal& refused) {
    return refused.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("what is kept for people has one line per thought") {
  CHECK(text_of(full(), {1, true}) == R"({
 "dsplan": 1,
 "kind": "library",
 "source": "by hand",
 "city": "Ulm \"an der Donau\"",
 "street": null,
 "size": 9007199254740993,
 "limit": null,
 "rent": 3,
 "open": true,
 "visitors": 7,
 "verdict": "fits",
 "words": [
  "plan",
  "--gpus", "8",
  "--strict",
  "--out"
 ],
 "shelves": [
  {"label": "a", "books": 1},
  {"label": "b", "books": 99}
 ],
 "count": 2,
 "returns": null,
 "lent": [],
 "rules": {
  "b": [1,2],
  "a": {
   "c": [
    {}
   ],
   "d": null
  }
 }
}
)");
}

TEST_CASE("what is written is read back, in either layout") {
  for (const Layout layout : {Layout{1, true}, Layout{2, false}, Layout{-1, false}}) {
    const std::string text = text_of(full(), layout);
    const Library back = read(text);
    CHECK(text_of(back, layout) == text);
    CHECK(back.size == full().size);
    CHECK(back.lent.has_value());
    CHECK_FALSE(back.returns.has_value());
    CHECK(back.rules->path == "library.json");
  }
  Library other = full();
  other.visitors.reset();
  other.lent.reset();
  other.returns = Shelf{"c", 4};
  const std::string text = text_of(other, {});
  CHECK(text.find("visitors") == std::string::npos);
  CHECK(text_of(read(text), {}) == text);
  CHECK(read(text).returns->books == 4);
}

TEST_CASE("a reader refuses what the description does not say, with its place") {
  const std::string text = text_of(full(), {1, true});
  struct Case {
    const char* from;
    const char* to;
    const char* says;
  };
  for (const Case& c :
       {Case{"\"city\"", "\"cities\"", "library.json:1:1: error: \"city\" is missing"},
        Case{"\"city\"", "\"cities\"", "unknown key \"cities\" in a library"},
        Case{"\"Ulm \\\"an der Donau\\\"\"", "null", "library.json:5:10: error: \"city\" must not be null"},
        Case{"\"label\": \"b\"", "\"lable\": \"b\"", "did you mean \"label\"?"},
        Case{"99}", "100}", "\"books\" must be from 0 to 99, not 100"},
        Case{"9007199254740993", "-1", "\"size\" must be at least 0, not -1"},
        Case{"\"rent\": 3", "\"rent\": -3", "\"rent\" must not be negative"},
        Case{"\"fits\"", "\"fit\"", "\"verdict\" must be one of fits, unknown, not \"fit\""},
        Case{"\"fits\"", "\"fit\"", "did you mean \"fits\"?"},
        Case{"\"--strict\"", "5", "a word must be a string, not an integer"},
        Case{"{\"label\": \"a\", \"books\": 1}", "3", "a shelf must be an object, not an integer"},
        Case{"\"open\": true", "\"open\": 1", "\"open\" must be true or false"},
        Case{"\"count\": 2,", "", "\"count\" is missing"},
        Case{"\"lent\": []", "\"lent\": {}", "\"lent\" must be an array"},
        Case{"\"dsplan\": 1", "\"dsplan\": 2", "file version 2 is not known"},
        Case{"\"rules\": {", "\"rules\": 5, \"more\": {", "\"rules\" must be an object"}}) {
    const std::string said = refusal_of(text, c.from, c.to);
    CHECK_MESSAGE(said.find(c.says) != std::string::npos, c.from, " -> ", c.to, ": ", said);
  }
  CHECK(refusal_of(text, "\"visitors\": 7,", "") == "accepted");
}

TEST_CASE("the schema and the nulls come from the same description") {
  const std::string schema = schema_of("library/1", "Books.", [](Fields& fields) {
    Library any;
    describe_library(fields, any);
  });
  const Document document = parse_json("schema.json", schema);
  const Value* properties = document.root.find("properties");
  REQUIRE(properties != nullptr);
  CHECK(canonical_json(*properties->find("limit")) == R"({"minimum":0,"type":["integer","null"]})");
  CHECK(canonical_json(*properties->find("verdict")) == R"({"enum":["fits","unknown"]})");
  CHECK(canonical_json(*properties->find("words")) == R"({"items":{"type":"string"},"type":"array"})");
  CHECK(properties->find("returns")->find("type")->items.size() == 2);
  CHECK(properties->members.back().key == "visitors");
  CHECK(document.root.find("required")->items.size() == properties->members.size() - 1);
  const std::vector<std::string> nulls = nulls_of([](Fields& fields) {
    fields.object("inner", {"it"}, [&] {
      Library library = full();
      describe_library(fields, library);
    });
  });
  CHECK(nulls == std::vector<std::string>{"inner.street", "inner.limit", "inner.returns"});
}

TEST_CASE("a prediction comes back from its JSON with every figure that is compared") {
  Prediction p;
  p.fingerprint = "sha256:00";
  p.rank = 1;
  p.world = 4;
  p.parameters_total = Elements(5);
  p.persistent.by_role[Role::Gradients] = Bytes(8);
  p.persistent.allocated = Bytes(512);
  p.peak.emplace();
  p.peak->reserved = Bytes(1 << 20);
  p.peak->phase = "steady";
  p.context = Bytes(100);
  p.verdict = Verdict::FitsWithRetries;
  p.phases = {{"steady", {{"before forward", Bytes(1), Bytes(2), Bytes(3), Bytes(4), 0, {}}}, Bytes(9), {}, {}, {}}};
  p.phases.front().allocations = 3;
  p.communication = {{Collective::AllGather, Group::DataParallelInside, Pass::Recompute, DType::UInt8,
                      TrafficKind::Control, 3, Bytes(8), Bytes(6)}};
  p.host.nvme = Bytes(77);
  const std::vector<PredictedRank> back = read_predictions(parse_json("p.json", prediction_json(p, Job())));
  REQUIRE(back.size() == 1);
  const RankFigures& figures = back.front().figures;
  const RankFigures before = figures_of(p).figures;
  CHECK(back.front().verdict == p.verdict);
  CHECK(figures.peak == before.peak);
  CHECK(figures.persistent == before.persistent);
  CHECK(figures.phases == before.phases);
  CHECK(figures.communication == before.communication);
  CHECK(figures.host.nvme == before.host.nvme);
  CHECK(figures.absent.size() == all_absences(p).size());
  CHECK(read_predictions(parse_json("p.json", predictions_json({p, p}, Job()))).size() == 2);
}
