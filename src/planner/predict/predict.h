// From a resolved job to what each rank will hold and send: the one entry for `simulate` and, later, `plan`.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"

namespace dsplan {

class SharedShapes;

// The prediction of one rank, 0 <= rank < world. With a schedule where one can be made; else the states and whatever
// formulas cover, and the rest absent with its reason in `not_modelled`.
[[nodiscard]] Prediction predict(const ModelSpec& model, const Job& job, std::int64_t rank);

// How much of a prediction is made. Screen: what the first screen says, without the long run, and without the other end
// of what waiting frees can do where the verdict does not rest on it. Searches ask for verdicts: those are also without
// what the clock says (reserved and retries as expected). Fate: of what surely does not fit no more than that, and
// where it first fails. Change: of what fits, what it needs or takes, and nothing of the other end. ChangeEnds: but how
// often that retries.
enum class Detail : std::uint8_t { All, Screen, Verdict, Fate, Change, ChangeEnds };

// What job.rank asks for: one rank by number, "all" (every rank, ascending), or "worst": the largest peak.process (the
// largest persistent total where there is no peak), lowest rank on ties. Refuses a rank that does not exist.
[[nodiscard]] std::vector<Prediction> predict_asked(const ModelSpec& model, const Job& job,
                                                    Detail detail = Detail::All);

// What a prediction is wanted for. Any; IfFits: unless a rank asks for more than the device has; IfClean: nor where the
// allocator surely gives its cache back to fit.
enum class Wanted : std::uint8_t { Any, IfFits, IfClean };

// The worst rank's; nullopt once it is seen not to be what is wanted, of which nothing else is made then, or once
// `needless`, if there is one, is set by another thread. A prediction may still say that it does not fit. `shapes`: of
// several jobs of this model.
[[nodiscard]] std::optional<Prediction> predict_wanted(const ModelSpec& model, const Job& job, Detail detail,
                                                       Wanted wanted, const std::atomic<bool>* needless = nullptr,
                                                       SharedShapes* shapes = nullptr);

// SHA-256 over the canonical text of all resolved inputs that determine bytes: "sha256:<hex>". Not dsplan's version,
// rates, file names or results.
[[nodiscard]] std::string fingerprint(const ModelSpec& model, const Job& job);

}  // namespace dsplan
