// A program that uses CUDA, on the dry device: 1 GiB with 64 MiB of context, twice. It is linked as any other program
// is, against libcudart.so.13, libcuda.so.1 and libnccl.so.2 of this build.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  setenv("DSPLAN_DRY_DEVICE", "name=Small;major=8;minor=9;multiprocessors=4;memory=1073741824;context=67108864;count=2",
         1);
  unsetenv("CUDA_VISIBLE_DEVICES");
  return doctest::Context(argc, argv).run();
}
