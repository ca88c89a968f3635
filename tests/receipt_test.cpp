// The files of the measuring tools: read, refused with their places, written again.
#include <doctest/doctest.h>

#include <filesystem>

#include "core/calibration.h"
#include "core/receipt.h"
#include "io/text.h"
#include "paths.h"
#include "report/calibration.h"
#include "report/compare_rows.h"
#include "report/comparison.h"
#include "report/receipt.h"
#include "run_binary.h"
#include "texts.h"

using namespace dsplan;

namespace {

const std::string kRoot = test_paths::source_dir();
const std::string kGolden = kRoot + "/tests/golden/receipts/v1/";

using dsplan::test::with;

template <class Read>
std::string refusal(Read&& read) {
  try {
    read();
  } catch (const Refusal& refused) {
    return refused.what();
  }
  return "accepted";
}

std::string refusal_of_receipt(const std::string& text) {
  return refusal([&] { (void)read_receipt(parse_json("r.json", text)); });
}

constexpr const char* kEnvironment = R"("environment": {"gpu": "NVIDIA H200", "capacity_bytes": 150754820096,
  "driver": "580.159", "cuda": "13.0", "python": "3.12.3", "torch": "2.11.0", "transformers": null, "deepspeed": null,
  "peft": null, "allocator_conf": "", "limit_bytes": null, "recorded": "2026-11-21T19:00:00Z"})";

}  // namespace

TEST_CASE("receipts of version 1 stay readable, and writing them gives them back") {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
    const std::string path = entry.path().string();
    CAPTURE(path);
    const Receipt receipt = read_receipt(read_document(path));
    CHECK(receipt.name + ".json" == entry.path().filename().string());
    const Document again = parse_json(path, receipt_json(receipt));
    CHECK(canonical_json(again.root) == canonical_json(read_document(path).root));
    CHECK(read_receipt(again).inputs.digest == receipt.inputs.digest);
    ++files;
  }
  CHECK(files >= 3);
}

TEST_CASE("what a receipt says") {
  const Receipt receipt = read_receipt(read_document(kGolden + "made-ddp.json"));
  CHECK(receipt.source == "made by hand from a prediction: no measurement");
  CHECK(receipt.level == Receipt::Level::Framework);
  CHECK(receipt.device == Receipt::Device::Cuda);
  CHECK(receipt.ranks_are == Receipt::Ranks::FakeProcessGroup);
  CHECK(receipt.complete);
  CHECK(receipt.world == 8);
  CHECK(receipt.environment.gpu == "NVIDIA H200");
  CHECK(receipt.environment.capacity == Bytes(150754820096));
  CHECK(receipt.inputs.options == std::vector<std::string>{"--gpus", "8"});
  REQUIRE(receipt.ranks.size() == 1);
  const RankFigures& rank = receipt.ranks.front();
  CHECK(rank.peak[Counter::Requested].has_value());
  CHECK(rank.peak[Counter::Process].has_value());
  CHECK(rank.phases.size() == 3);
  CHECK(rank.phases[0].marks.size() == 2);
  CHECK(rank.phases[2].marks[2].name == "before forward");
  REQUIRE(rank.communication.has_value());
  CHECK(rank.communication->front().collective == "broadcast");
  CHECK(receipt.samples.size() == 1);
}

TEST_CASE("the split is by the inputs alone") {
  const std::string text = test::slurp(kGolden + "made-ddp.json");
  const Receipt receipt = read_receipt(parse_json("r.json", text));
  const auto digest = [](const std::string& changed) {
    return read_receipt(parse_json("r.json", changed)).inputs.digest;
  };
  CHECK(digest(with(text, "\"fingerprint\": \"sha256:", "\"fingerprint\": \"sha256:0")) == receipt.inputs.digest);
  CHECK(digest(with(text, "\"recorded\": \"2026", "\"recorded\": \"2027")) == receipt.inputs.digest);
  CHECK(digest(with(text, "\"--gpus\"", "\"--gpus\", \"8\", \"--tp\"")) != receipt.inputs.digest);
  ReceiptInputs inputs;
  inputs.digest = "04ff";
  CHECK(part_of(inputs) == HeldFor::Final);
  inputs.digest = "05ff";
  CHECK(part_of(inputs) == HeldFor::Causes);
}

TEST_CASE("canonical JSON does not depend on how a file was written") {
  const Document document =
      parse_json("x.json", R"({"b": [1, 1.0, 1e-5, 5e8, true, null], "a": {"z": "\u00e9\n\"", "y": {}}})");
  CHECK(canonical_json(document.root) ==
        "{\"a\":{\"y\":{},\"z\":\"\u00e9\\u000a\\\"\"},\"b\":[1,1,1e-05,500000000,true,null]}");
}

TEST_CASE("a receipt is refused where it is wrong") {
  const std::string text = test::slurp(kGolden + "made-ddp.json");
  struct Case {
    const char* from;
    const char* to;
    const char* says;
  };
  for (const Case& c :
       {Case{"dsplan.receipt/1", "dsplan.receipt/2", "\"schema\" must be one of dsplan.receipt/1"},
        Case{"\"device\": \"cuda\"", "\"device\": \"cuds\"", "did you mean \"cuda\"?"},
        Case{"\"device\": \"cuda\"", "\"device\": null", "\"device\" must not be null"},
        Case{"\"message\": null,", "", "\"message\" is missing"},
        Case{"\"message\": null,", "\"massage\": null, \"message\": null,", "did you mean \"message\"?"},
        Case{"\"outcome\": \"ran\"", "\"outcome\": \"error\"", "true, but the outcome is error"},
        Case{"\"rank\": 0,\n", "\"rank\": 8,\n", "must be from 0 to 7, not 8"},
        Case{"\"model\": {", "\"model\": null, \"modell\": {", "must be the whole config.json"},
        Case{"\"trainable\": ", "\"trainable\": -", "must be at least 0"},
        Case{"\"name\": \"init\"", "\"name\": \"inits\"", "no phase \"inits\""},
        Case{"\"name\": \"init\"", "\"name\": \"steady\"", "phase \"steady\" stands twice"},
        Case{"\"name\": \"before forward\"", "\"name\": \"before forwards\"", "did you mean \"before forward\"?"},
        Case{"\"peak_requested\": ", "\"peak_requested\": 1, \"peak_requests\": ", "unknown key \"peak_requests\""},
        Case{"\"process\": ", "\"process\": null, \"p\": ", "unknown key \"p\""},
        Case{"\"collective\": \"all_reduce\"", "\"collective\": \"allreduce\"", "did you mean \"all_reduce\"?"},
        Case{"\"step_ns\": ", "\"step_ns\": \"\", \"ns\": ", "must be an integer"},
        Case{"\"name\": \"made-ddp\"", "\"name\": \"a/b\"", "must be a file's name"},
        Case{"\"--gpus\"", "8", "an option must be a string"}}) {
    const std::string said = refusal_of_receipt(with(text, c.from, c.to));
    CHECK_MESSAGE(said.find(c.says) != std::string::npos, c.from, " -> ", c.to, ": ", said);
    CHECK_MESSAGE(said.starts_with("r.json:"), said);
  }
}

TEST_CASE("what is null has its reason, unless the run ended early") {
  const std::string text = test::slurp(kGolden + "made-fake.json");
  const std::string silent = with(text, "\"what\": \"memory.reserved\"", "\"what\": \"memory.reserve\"");
  const std::string said = refusal_of_receipt(silent);
  CHECK_MESSAGE(said.find("memory.peak.reserved is null, and \"not_measured\" does not say why") != std::string::npos,
                said);
  const std::string early = with(silent, "\"complete\": true", "\"complete\": false");
  CHECK(refusal_of_receipt(early) == "accepted");
}

TEST_CASE("a mark above its phase's peak is no measurement") {
  const std::string text = test::slurp(kGolden + "made-ddp.json");
  const std::size_t at = text.find("\"requested\": ", text.find("\"name\": \"before forward\""));
  const std::string said = refusal_of_receipt(text.substr(0, at) + "\"requested\": 999" + text.substr(at + 13));
  CHECK_MESSAGE(said.find("is above the phase's peak of") != std::string::npos, said);
}

TEST_CASE("a driver's name and a bundled device") {
  struct Case {
    const char* gpu;
    const char* hardware;
    bool same;
  };
  for (const Case& c :
       {Case{"NVIDIA H200", "h200-sxm", true}, Case{"NVIDIA H200", "h20", false}, Case{"NVIDIA H20", "h200-sxm", false},
        Case{"NVIDIA A100-SXM4-80GB", "a100-sxm-80", true}, Case{"NVIDIA A100-SXM4-80GB", "a10", false},
        Case{"NVIDIA A10G", "a10", false}, Case{"NVIDIA GeForce RTX 4090", "rtx4090", true},
        Case{"NVIDIA L40S", "l4", false}, Case{"NVIDIA RTX 6000 Ada Generation", "rtx6000ada", true},
        Case{"NVIDIA H100 80GB HBM3", "h100-sxm", true}, Case{"", "h200-sxm", false}}) {
    CHECK_MESSAGE(same_device(c.gpu, c.hardware) == c.same, c.gpu, ", ", c.hardware);
  }
}

TEST_CASE("calibrations") {
  const auto file = [](const std::string& rows) {
    return std::string(R"({"schema": "dsplan.calibration/1", "source": "by hand", )") + kEnvironment + ", \"rows\": [" +
           rows + "]}";
  };
  const std::string context = R"({"name": "context", "value": 555, "unit": "bytes", "how": "NVML", "samples": [555]})";
  const Calibration read = read_calibration(parse_json(
      "c.json", file(context + R"(, {"name": "communicator_8", "value": 7, "unit": "bytes", "how": "", "samples": []},
        {"name": "cublas_workspace", "value": 33554432, "unit": "bytes", "how": "", "samples": []},
        {"name": "context:after_step", "value": 9, "unit": "bytes", "how": "", "samples": []},
        {"name": "first_use:gemm", "value": 0, "unit": "bytes", "how": "", "samples": []},
        {"name": "copy_d2d:1048576", "value": 1.5e12, "unit": "bytes_per_s", "how": "", "samples": []})")));
  CHECK(read.gpu == "NVIDIA H200");
  CHECK(read.context == Bytes(555));
  CHECK(read.cublas_workspace == Bytes(33554432));
  CHECK_FALSE(read.cublaslt_workspace.has_value());
  CHECK(read.communicators.at(8) == Bytes(7));
  // As tools/frameworks/constants writes it.
  const std::string told = with(file(context), "\"source\"",
                                "\"name\": \"memory\", \"device\": \"cuda\", \"complete\": true, \"failed\": "
                                "[{\"name\": \"cudnn_handle\", \"message\": \"why\"}], \"source\"");
  CHECK(read_calibration(parse_json("c.json", told)).context == Bytes(555));
  const auto said = [&](const std::string& rows) {
    return refusal([&] { (void)read_calibration(parse_json("c.json", file(rows))); });
  };
  CHECK(said(context + "," + context).find("\"context\" stands twice") != std::string::npos);
  CHECK(said(with(context, "\"context\"", "\"contxt\"")).find("did you mean \"context\"?") != std::string::npos);
  CHECK(said(with(context, "\"context\"", "\"contxt:bare\"")).find("no constant") != std::string::npos);
  CHECK(said(with(context, "\"context\"", "\"context:\"")).find("no constant") != std::string::npos);
  CHECK(said(with(context, "\"bytes\"", "\"byte\"")).find("did you mean \"bytes\"?") != std::string::npos);
  CHECK(said(with(context, "555", "5.5")).find("must be an integer") != std::string::npos);
}

TEST_CASE("known differences") {
  const std::string entry =
      R"({"receipt": "a", "rank": 0, "row": "memory.peak.reserved", "bytes": -5, "reason": "why"})";
  const auto file = [](const std::string& entries) {
    return R"({"schema": "dsplan.explained/1", "source": "by hand", "differences": [)" + entries + "]}";
  };
  const auto read = [&](const std::string& entries) {
    return read_known_differences(parse_json("e.json", file(entries)));
  };
  REQUIRE(read(entry).size() == 1);
  CHECK(read(entry).front().bytes == -5);
  const auto said = [&](const std::string& entries) { return refusal([&] { (void)read(entries); }); };
  CHECK(said(with(entry, "-5", "0")).find("is not 0 bytes") != std::string::npos);
  CHECK(said(with(entry, "\"why\"", "\"\"")).find("has a reason") != std::string::npos);
  CHECK(said(with(entry, "\"bytes\"", "\"byte\"")).find("did you mean \"bytes\"?") != std::string::npos);
}

TEST_CASE("verdicts that were put to the test") {
  const std::string row = R"({"name": "a", "predicted_bytes": 100, "limit_bytes": 99, "factor_permille": 990,
    "predicted": "does_not_fit", "measured": "out_of_memory", "retries": 0})";
  const auto file = [](const std::string& rows) {
    return std::string(R"({"schema": "dsplan.verdicts/1", "source": "by hand", )") + kEnvironment + ", \"rows\": [" +
           rows + "]}";
  };
  const VerdictCases cases =
      read_verdicts(parse_json("v.json", file(row + "," + with(row, "\"out_of_memory\"", "\"ran\""))));
  REQUIRE(cases.rows.size() == 2);
  CHECK(cases.rows[0].right());
  CHECK_FALSE(cases.rows[1].right());
  const std::string bad = with(row, "\"out_of_memory\"", "\"out\"");
  const std::string said = refusal([&] { (void)read_verdicts(parse_json("v.json", file(bad))); });
  CHECK(said.find("must be one of ran, out_of_memory") != std::string::npos);
}
