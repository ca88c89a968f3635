// `dsplan show schema KIND`: the JSON Schemas of what commands print.
#include <array>
#include <optional>

#include "cli/commands.h"
#include "core/format.h"
#include "report/check_report.h"
#include "report/comparison_report.h"
#include "report/prediction_file.h"
#include "report/receipt.h"
#include "report/replay_report.h"
#include "report/search_report.h"

namespace dsplan {
namespace {

struct SchemaRow {
  std::string_view kind;
  std::string (*text)();
};

// What commands print with --format json and write as receipts, each by the description that writes it.
constexpr std::array kSchemas = {
    SchemaRow{"prediction", prediction_schema},
    SchemaRow{"search", plan_answer_schema},
    SchemaRow{"chain", chain_plan_schema},
    SchemaRow{"sweep", sweep_schema},
    SchemaRow{"diff", diff_schema},
    SchemaRow{"check", check_schema},
    SchemaRow{"comparison", comparison_schema},
    SchemaRow{"confusion", confusion_schema},
    SchemaRow{"receipt", receipt_schema},
    SchemaRow{"replay", replay_schema},
    SchemaRow{"explain", explanation_schema},
};

}  // namespace

std::string show_schema(const Words& words) {
  std::vector<std::string_view> kinds;
  for (const SchemaRow& row : kSchemas) kinds.push_back(row.kind);
  CommandLine line("dsplan show schema", "Prints the JSON Schema of what a command prints with --format json.");
  std::optional<std::string> asked;
  line.positional("KIND", formatted("{} (default: prediction)", joined(kinds, ", ")), asked);
  line.parse(words);
  const std::string kind = asked.value_or("prediction");
  for (const SchemaRow& row : kSchemas) {
    if (row.kind == kind) return row.text();
  }
  std::string hint = did_you_mean(kind, kinds);
  throw Refusal("dsplan show schema", formatted("no schema \"{}\"", kind),
                hint.empty() ? formatted("schemas are {}", joined(kinds, ", ")) : std::move(hint));
}

}  // namespace dsplan
