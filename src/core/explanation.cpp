#include "core/explanation.h"

namespace dsplan {

std::string_view name(Remedy::Outcome outcome) {
  switch (outcome) {
    case Remedy::Outcome::Fits: return "fits";
    case Remedy::Outcome::FitsWithRetries: return "fits_with_retries";
    case Remedy::Outcome::DoesNotFit: return "does_not_fit";
    case Remedy::Outcome::NotModelled: return "not_modelled";
  }
  return "?";
}

}  // namespace dsplan
