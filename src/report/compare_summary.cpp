#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "report/compare.h"

namespace dsplan {
namespace {

// The rows that stand for a whole run.
constexpr std::array<std::string_view, 9> kPrincipal = {"memory.persistent.requested",
                                                        "memory.persistent.allocated",
                                                        "memory.peak.requested",
                                                        "memory.peak.allocated",
                                                        "memory.peak.active",
                                                        "memory.peak.reserved",
                                                        "memory.peak.process",
                                                        "memory.host.peak",
                                                        "verdict"};
constexpr std::array<std::string_view, 9> kStrata = {"single GPU", "DDP",     "ZeRO-0",        "ZeRO-1", "ZeRO-2",
                                                     "ZeRO-3",     "offload", "checkpointing", "LoRA"};

double percent(const ComparedRow& row) {
  const auto measured = static_cast<double>(*row.measured);
  const auto error = static_cast<double>(*row.predicted) - measured;
  return measured == 0 ? (error == 0 ? 0 : std::copysign(100.0, error)) : 100 * error / measured;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

class Gatherer {
 public:
  explicit Gatherer(StratumRow row) : row_(std::move(row)) {}

  void take(const ComparedRow& row) {
    if (row.state == ComparedRow::State::NotMeasured || row.state == ComparedRow::State::NotPredicted) return;
    ++row_.cases;
    if (row.kind == RowKind::Verdict ? row.state == ComparedRow::State::Equal : row.measured == row.predicted) {
      ++row_.equal;
    }
    if (row.state == ComparedRow::State::Differs) ++row_.unexplained;
    if (row.measured) errors_.push_back(percent(row));
  }

  [[nodiscard]] StratumRow finish() {
    row_.median_percent = median(errors_);
    for (const double error : errors_) {
      if (std::abs(error) > std::abs(row_.worst_percent)) row_.worst_percent = error;
    }
    return row_;
  }

 private:
  StratumRow row_;
  std::vector<double> errors_;
};

bool belongs(const ReceiptComparison& comparison, std::string_view stratum, Receipt::Device device) {
  return comparison.device == device &&
         std::find(comparison.strata.begin(), comparison.strata.end(), stratum) != comparison.strata.end();
}

}  // namespace

std::vector<StratumRow> by_stratum(const std::vector<ReceiptComparison>& comparisons) {
  std::vector<StratumRow> rows;
  for (const auto device :
       {Receipt::Device::Cuda, Receipt::Device::Cpu, Receipt::Device::Fake, Receipt::Device::Host}) {
    for (const std::string_view stratum : kStrata) {
      for (const std::string_view path : kPrincipal) {
        Gatherer gatherer(StratumRow{std::string(stratum), device, std::string(path)});
        for (const ReceiptComparison& comparison : comparisons) {
          if (!belongs(comparison, stratum, device)) continue;
          for (const RankComparison& rank : comparison.ranks) {
            for (const ComparedRow& row : rank.rows) {
              if (row.path == path) gatherer.take(row);
            }
          }
        }
        const StratumRow row = gatherer.finish();
        if (row.cases > 0) rows.push_back(row);
      }
    }
  }
  return rows;
}

}  // namespace dsplan
