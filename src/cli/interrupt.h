// Ctrl-C, for commands that write what there is before they end.
#pragma once

#include <atomic>

namespace dsplan {

// While it lives, the first SIGINT (and SIGTERM, by which launchers end the ranks that are left, where asked) is noted
// and not obeyed; a second one ends dsplan. Afterwards SIGINT does what it did before.
class Interrupt {
 public:
  enum class On { Interrupts, Terminations };
  explicit Interrupt(On on = On::Interrupts);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Whether one came since the program began.
  [[nodiscard]] static const std::atomic<bool>& asked();

 private:
  void (*before_)(int);
};

}  // namespace dsplan
