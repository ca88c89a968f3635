// Cases of operators.json and of tests themselves, as tests/witnesses/operators.json writes them, read by dsplan's own
// reader of measured operators.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "io/text.h"
#include "model/catalogue/operator_words.h"
#include "report/operators_receipt.h"

namespace dsplan::testing {

// `Json`: an entry as the including file has read it.
template <class Json>
Graph graph_of(const Json& entry) {
  const Document document = parse_json("case", entry.dump());
  Diagnostics diagnostics;
  OperatorRun run = read_operator_run(document, document.root, diagnostics);
  diagnostics.throw_if_any();
  return std::move(run.graph);
}

inline std::string words_of(const Recipe& recipe, const std::vector<RecipeStep>& steps) {
  return dsplan::words_of(recipe, steps, RunLevel::Dispatch);
}
using dsplan::is_kept;

}  // namespace dsplan::testing
