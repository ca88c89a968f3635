// Baselines: what moves a row and who moved it, and the file.
#include <doctest/doctest.h>

#include "io/text.h"
#include "report/baseline.h"
#include "report/check_report.h"
#include "run_binary.h"
#include "texts.h"

using namespace dsplan;

namespace {

FigureRow row(const std::string& path, std::int64_t value) { return {path, {value, {}}}; }

FiguresOfRanks one_rank(std::vector<FigureRow> rows, std::int64_t rank = 0) { return {{rank, std::move(rows)}}; }

CheckedRow checked(const FiguresOfRanks& stored, const FiguresOfRanks& replayed, const FiguresOfRanks& now,
                   const Tolerances& tolerances = {}) {
  const std::vector<CheckedRank> ranks = lay_over(stored, replayed, now, {}, tolerances);
  REQUIRE(ranks.size() == 1);
  REQUIRE(!ranks[0].rows.empty());
  return ranks[0].rows[0];
}

std::vector<std::string> words(const std::vector<KeyChange>& changes) {
  std::vector<std::string> list;
  for (const KeyChange& change : changes) list.push_back(key_words(change));
  return list;
}

const std::string kBaseline = R"({
 "dsplan": 1, "kind": "baseline", "source": "by hand", "folder": "..",
 "command": ["gpt2", "--gpus", "1"],
 "written": {"dsplan": "0.1.0", "torch": "2.11.0", "transformers": "5.17.0", "deepspeed": "0.19.8"},
 "fingerprint": "sha256:00", "model_sha256": "00",
 "ranks": [{"rank": 0, "rows": {"verdict": "fits", "memory.peak.requested": 12, "memory.host.nvme": null}}],
 "resolved": [{"name": "seq", "value": "128", "origin": "given"}],
 "inputs": {"command": ["gpt2", "--gpus", "1"], "model": {"bundled": "gpt2"}, "deepspeed": null,
  "training": {"path": "t.json", "content": {"a": [1, 2], "b": {"c": 0.5, "d": []}, "e": [{"f": "\u00e9\"\n"}]}},
  "checkpoint": null, "hardware": null, "cluster": null, "calibration": null}
})";

using dsplan::test::with;

std::string refusal(const std::string& text) {
  try {
    (void)read_baseline(parse_json("b.json", text));
  } catch (const Refusal& refused) {
    return refused.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a row moves by a newer dsplan, by your change, or by both, and the parts sum to the whole") {
  const std::string path = "memory.peak.requested";
  struct Case {
    std::int64_t stored, replayed, now;
    bool newer, yours;
  };
  for (const Case& c : {Case{5, 5, 5, false, false}, Case{5, 7, 7, true, false}, Case{5, 5, 9, false, true},
                        Case{5, 7, 5, true, true}, Case{5, 4, 9, true, true}}) {
    const CheckedRow one =
        checked(one_rank({row(path, c.stored)}), one_rank({row(path, c.replayed)}), one_rank({row(path, c.now)}));
    CAPTURE(c.replayed);
    CHECK(one.newer == c.newer);
    CHECK(one.yours == c.yours);
    CHECK(*difference(one.stored, one.replayed) + *difference(one.replayed, one.now) == c.now - c.stored);
  }
}

TEST_CASE("tolerances hold for each part; there is none by default, not even for reserved bytes") {
  const std::string path = "memory.peak.reserved";
  const FiguresOfRanks stored = one_rank({row(path, 1000)}), now = one_rank({row(path, 1004)});
  CHECK(checked(stored, stored, now).yours);
  Tolerances tolerances;
  tolerances.by_kind[RowKind::Reserved] = {4, 0};
  CHECK(!checked(stored, stored, now, tolerances).moved());
  CHECK(checked(stored, stored, now, tolerances).within());
  tolerances.by_kind[RowKind::Reserved] = {0, 3};
  CHECK(checked(stored, stored, now, tolerances).yours);
  tolerances.by_kind[RowKind::Reserved] = {3, 0};
  CHECK(checked(stored, now, now, tolerances).newer);
}

TEST_CASE("a collective that one side does not list counts 0; other missing rows have moved") {
  const std::string traffic = "communication.all_gather.dp.forward.bf16.data.wire_bytes";
  const std::string peak = "memory.peak.requested";
  const FiguresOfRanks without = one_rank({row(peak, 1)});
  const FiguresOfRanks with_it = one_rank({row(peak, 1), row(traffic, 8)});
  const std::vector<CheckedRank> ranks = lay_over(without, without, with_it, {}, {});
  REQUIRE(ranks[0].rows.size() == 2);
  CHECK(!ranks[0].rows[0].moved());
  CHECK(ranks[0].rows[1].stored == FigureValue{0, {}});
  CHECK(ranks[0].rows[1].yours);
  CHECK(*difference(ranks[0].rows[1].replayed, ranks[0].rows[1].now) == 8);
  // Traffic that is not predicted is no 0.
  const FiguresOfRanks unknown = one_rank({row(peak, 1), {"communication", {}}});
  const std::vector<CheckedRank> silent = lay_over(unknown, unknown, with_it, {}, {});
  CHECK(silent[0].rows[1].path == traffic);
  CHECK(!silent[0].rows[1].stored.number);
  CHECK(moved_words(silent[0].rows[1].replayed, silent[0].rows[1].now) == "moved");
  CHECK(silent[0].rows[1].yours);
  // And a row that only the baseline has.
  const std::vector<CheckedRank> gone =
      lay_over(with_it, one_rank({row(traffic, 8)}), one_rank({row(traffic, 8)}), {}, {});
  CHECK(gone[0].rows[1].path == peak);
  CHECK(gone[0].rows[1].newer);
  CHECK(!gone[0].rows[1].yours);
}

TEST_CASE("single ranks meet whatever their number; several by their numbers") {
  const std::string path = "memory.peak.requested";
  const FiguresOfRanks zero = one_rank({row(path, 1)}, 0), three = one_rank({row(path, 1)}, 3);
  const std::vector<CheckedRank> worst = lay_over(zero, zero, three, {}, {});
  REQUIRE(worst.size() == 1);
  CHECK(worst[0].stored == 0);
  CHECK(worst[0].now == 3);
  CHECK(!worst[0].rows[0].moved());
  const FiguresOfRanks both = {{0, {row(path, 1)}}, {3, {row(path, 2)}}};
  const std::vector<CheckedRank> two = lay_over(both, both, zero, {}, {});
  REQUIRE(two.size() == 2);
  CHECK(!two[0].rows[0].moved());
  CHECK(two[1].rows[0].yours);  // Rank 3 is gone.
}

TEST_CASE("what each change moves alone, and what they move only together") {
  const std::string path = "memory.peak.requested";
  const FiguresOfRanks before = one_rank({row(path, 10)}), now = one_rank({row(path, 100)});
  std::vector<SourceChange> changes(2);
  changes[0].name = "ds.json";
  changes[1].name = "train.json";
  const auto shares = [&](std::optional<FiguresOfRanks> first, std::optional<FiguresOfRanks> second) {
    const auto ranks = lay_over(before, before, now, {std::move(first), std::move(second)}, {});
    return shares_of(ranks[0].rows[0], changes);
  };
  using Lines = std::vector<std::string>;
  CHECK(shares(one_rank({row(path, 40)}), one_rank({row(path, 70)})) == Lines{"ds.json +30", "train.json +60"});
  CHECK(shares(one_rank({row(path, 40)}), one_rank({row(path, 10)})) == Lines{"ds.json +30", "together +60"});
  CHECK(shares(one_rank({row(path, 110)}), std::nullopt) == Lines{"ds.json +100", "the others -10"});
  changes.pop_back();
  CHECK(shares(now, std::nullopt).empty());  // A single change is all of it.
}

TEST_CASE("changes of a file: leaves with their places, keys that come and go") {
  const Document before =
      parse_json("a.json", R"({"z": {"bucket": 5e8, "old": true, "same": 1}, "l": [1, 2], "m": [1]})");
  const Document after =
      parse_json("b.json", "{\"z\": {\"bucket\": 2e8,\n  \"same\": 1.0, \"new\": null},\n \"l\": [1, 3], \"m\": []}");
  CHECK(words(changes_of(before, after)) ==
        std::vector<std::string>{"b.json:1:8: z.bucket: 500000000 -> 200000000", "b.json:2:16: z.new: (none) -> null",
                                 "b.json:1:7: z.old: true -> (none)", "b.json:3:11: l[1]: 2 -> 3",
                                 "b.json:3:15: m: [1] -> []"});
  CHECK(changes_of(before, before).empty());
  const Document large = parse_json("c.json", "{\"text\": \"" + std::string(200, 'x') + "\"}");
  CHECK(changes_of(parse_json("d.json", "{\"text\": \"\"}"), large)[0].after.size() == 63);
}

TEST_CASE("resolved inputs that differ, come and go") {
  const std::vector<ResolvedInput> before = {{"seq", "128", Origin::Given, "--seq", {}},
                                             {"tp", "2", Origin::Given, "", {}}};
  const std::vector<ResolvedInput> after = {{"seq", "256", Origin::Given, "t.json:1:2", {}},
                                            {"loss", "hf", Origin::Assumed, "by default", {}}};
  const std::vector<InputChange> expected = {
      {"seq", "128", "256", "t.json:1:2"}, {"loss", "", "hf", "by default"}, {"tp", "2", "", ""}};
  CHECK(changes_of(before, after) == expected);
  CHECK(input_words(expected[0]) == "seq: 128 -> 256 (t.json:1:2)");
  CHECK(input_words(expected[2]) == "tp: 2 -> (none)");
}

TEST_CASE("every row of a baseline has a kind") {
  for (const auto& [path, kind] : {std::pair{"verdict", RowKind::Verdict},
                                   {"parameters.total", RowKind::Parameters},
                                   {"memory.persistent.optimizer", RowKind::Requested},
                                   {"memory.peak.by_role.activations", RowKind::Requested},
                                   {"memory.peak.process", RowKind::Process},
                                   {"memory.phases.steady.peak_reserved", RowKind::Reserved},
                                   {"memory.phases.init.peak_requested", RowKind::Requested},
                                   {"memory.host.pinned", RowKind::Host},
                                   {"communication.all_reduce.dp.step.fp32.control.calls", RowKind::Calls},
                                   {"communication.all_reduce.dp.step.fp32.control.payload_bytes", RowKind::Payload},
                                   {"communication.all_reduce.dp.step.fp32.control.wire_bytes", RowKind::Wire}}) {
    CAPTURE(path);
    CHECK(kind_of_row(path) == kind);
  }
  CHECK(!kind_of_row("momory.peak"));
}

TEST_CASE("a baseline that is written and read again is the same") {
  const Baseline once = read_baseline(parse_json("b.json", kBaseline));
  CHECK(once.command_place.line == 3);
  CHECK(once.ranks[0].rows[1] == row("memory.peak.requested", 12));
  CHECK(once.inputs[SourceKind::Model]->bundled);
  const std::string text = baseline_json(once);
  const Baseline again = read_baseline(parse_json("b.json", text));
  CHECK(baseline_json(again) == text);
  CHECK(changes_of(once.inputs[SourceKind::Training]->content, again.inputs[SourceKind::Training]->content).empty());
  CHECK(text.find("\n  \"--gpus\", \"1\"\n ]") != std::string::npos);  // One option, one line.
  CHECK(text.find("\n   \"memory.peak.requested\": 12,\n") != std::string::npos);
}

TEST_CASE("a faulty baseline is refused at its place") {
  struct Case {
    const char *from, *to, *said;
  };
  for (const Case& c : {
           Case{"\"dsplan\": 1", "\"dsplan\": 2",
                "b.json:2:12: error: file version 2 is not known; this dsplan reads version 1"},
           Case{"\"kind\": \"baseline\"", "\"kind\": \"training\"", "\"kind\" must be \"baseline\""},
           Case{"\"folder\"", "\"floder\"", "\"folder\" is missing"},
           Case{"\"folder\"", "\"floder\": 1, \"folder\"",
                "unknown key \"floder\" in a baseline; did you mean \"folder\"?"},
           Case{"\"..\"", "null", "\"folder\" must not be null"},
           Case{"[\"gpt2\"", "[7", "b.json:3:14: error: a word must be a string, not an integer"},
           Case{"\"fits\"", "\"fit\"", "did you mean \"fits\"?"},
           Case{"12", "-12", "\"memory.peak.requested\" must be at least 0, not -12"},
           Case{"12", "\"12\"", "must be an integer, not a string"},
           Case{"\"memory.peak.requested\": 12", "\"peak\": 12", "no row \"peak\""},
           Case{"12, \"memory.host.nvme\"", "12, \"memory.peak.requested\"", "memory.peak.requested"},
           Case{"{\"rank\": 0", "{\"rank\": 0, \"rows\": {}}, {\"rank\": 0", "rank 0 stands twice"},
           Case{"\"given\"", "\"guessed\"", "\"origin\" must be one of given, derived, assumed"},
           Case{"{\"bundled\": \"gpt2\"}", "null", "\"model\" must be a file or a bundled name"},
           Case{"\"content\": {", "\"contents\": {", "\"content\" is missing"},
           Case{"\"deepspeed\": \"0.19.8\"", "\"deepspeed\": null", "\"deepspeed\" must not be null"},
       }) {
    CAPTURE(c.to);
    const std::string said = refusal(with(kBaseline, c.from, c.to));
    CHECK_MESSAGE(said.find(c.said) != std::string::npos, said);
    CHECK(said.find("b.json:") != std::string::npos);
    CHECK(said.find('^') != std::string::npos);
  }
  CHECK(refusal(with(kBaseline,
                     "[{\"rank\": 0, \"rows\": {\"verdict\": \"fits\", \"memory.peak.requested\": 12, "
                     "\"memory.host.nvme\": null}}]",
                     "[]"))
            .find("\"ranks\" is empty") != std::string::npos);
  CHECK(refusal("[1]").find("a baseline must be an object") != std::string::npos);
  // Another version may hold anything: only its version is refused.
  const std::string future =
      refusal(with(with(kBaseline, "\"dsplan\": 1", "\"dsplan\": 9"), "\"folder\"", "\"place\""));
  CHECK(future.find("file version 9 is not known") != std::string::npos);
  CHECK(future.find("unknown key") == std::string::npos);
}
