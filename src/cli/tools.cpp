// The small commands: doctor.
#include "cli/commands.h"
#include "cli/machine.h"
#include "cli/output.h"
#include "core/format.h"
#include "core/training.h"
#include "io/locate.h"

namespace dsplan {

int doctor_command(const Words& words) {
  CommandLine line("dsplan doctor", "Says what is installed.");
  line.parse(words);
  Output output("");
  output.add(formatted("dsplan        {}\n", DSPLAN_VERSION));
  output.add(formatted("modelled      torch {}, transformers {}, deepspeed {}\n", kTorchVersion, kTransformersVersion,
                       kDeepSpeedVersion));
  const std::optional<std::string> data = find_data_dir();
  output.add(data ? formatted("data          {} ({} models)\n", *data, list_bundled(Bundled::Model).size())
                  : std::string("data          missing\n"));
  output.add(formatted("CUDA          {}\n", describe_cuda()));
  output.add(formatted("NCCL          {}\n", describe_nccl()));
  output.finish();
  if (!data) (void)data_dir();  // Refuses, and says where it looked.
  return kDone;
}

}  // namespace dsplan
