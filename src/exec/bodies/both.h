// What is written once for the host and for devices.
#pragma once

#ifdef __CUDACC__
#define DSPLAN_BOTH __host__ __device__
#else
#define DSPLAN_BOTH
#endif
