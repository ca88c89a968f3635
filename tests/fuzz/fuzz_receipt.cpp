// The files of the measuring tools and saved predictions: refused, or read; never a crash. The first byte chooses the
// reader. A receipt that was accepted is accepted again as it is written, with the same digest.
#include "io/text.h"
#include "property.h"
#include "report/calibration.h"
#include "report/compare_rows.h"
#include "report/comparison.h"
#include "report/prediction_file.h"
#include "report/receipt.h"

using namespace dsplan;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  Receipt receipt;
  const bool accepted = fuzz::accepts([&] {
    const Document document = parse_json("file.json", text);
    switch (data[0] % 5) {
      case 0: receipt = read_receipt(document); break;
      case 1: (void)read_predictions(document); break;
      case 2: (void)read_calibration(document); break;
      case 3: (void)read_known_differences(document); break;
      default: (void)read_verdicts(document); break;
    }
  });
  if (accepted && data[0] % 5 == 0) {
    const Receipt again = read_receipt(parse_json("again.json", receipt_json(receipt)));
    fuzz::require(again.inputs.digest == receipt.inputs.digest, "written inputs are the inputs");
    fuzz::require(again.ranks.size() == receipt.ranks.size(), "as many ranks");
  }
  return 0;
}
