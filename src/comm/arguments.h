// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "farandole/comm/topology.h"
#include "farandole/comm/types.h"
#include "farandole/export.h"

namespace farandole::comm {

// What every communicator checks of a call before it sends anything, as communicator.h describes
// the operations. Each throws InvalidArgument.

FARANDOLE_API void check_all_reduce(const void* input, const void* output, size_t count,
                                    DataType dtype, ReduceOp op);
FARANDOLE_API void check_reduce_scatter(const Topology& topology, const void* input,
                                        const void* output, size_t count, DataType dtype,
                                        ReduceOp op);
FARANDOLE_API void check_all_gather(const Topology& topology, const void* input, const void* output,
                                    size_t count, DataType dtype);
FARANDOLE_API void check_broadcast(const Topology& topology, const void* buffer, size_t count,
                                   DataType dtype, int root);
FARANDOLE_API void check_reduce(const Topology& topology, const void* input, const void* output,
                                size_t count, DataType dtype, ReduceOp op, int root);
FARANDOLE_API void check_gather(const Topology& topology, const void* input, const void* output,
                                size_t count, DataType dtype, int root);
FARANDOLE_API void check_scatter(const Topology& topology, const void* input, const void* output,
                                 size_t count, DataType dtype, int root);
FARANDOLE_API void check_all_to_all(const Topology& topology, const void* input, const void* output,
                                    size_t count, DataType dtype);
FARANDOLE_API void check_all_to_all_v(const Topology& topology, const void* input,
                                      const size_t* send_counts, const void* output,
                                      const size_t* receive_counts, DataType dtype);
/// `lowest` <= peer < world_size; `role` is its name in the call.
FARANDOLE_API void check_peer(const char* call, const char* role, int peer, int lowest,
                              int world_size);
/// `data` of a send or receive may be null only if there is nothing in it.
FARANDOLE_API void check_message(const char* call, const void* data, size_t bytes);

/// The sum of the counts.
FARANDOLE_API size_t sum_of(const size_t* counts, size_t size);

}  // namespace farandole::comm
