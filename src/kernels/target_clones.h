// SPDX-License-Identifier: Apache-2.0
#pragma once

// One binary for every x86-64: the loader picks the widest clone that the CPU has. Sanitizers
// cannot run resolvers that early, and other architectures have one baseline. target_clones needs
// plain functions, not templates.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(FARANDOLE_SANITIZED)
#define FARANDOLE_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FARANDOLE_CLONES
#endif

/// For what a clone calls: only what is inlined into it uses its instructions. And for what kernels
/// of a GPU call.
#ifdef __CUDACC__
#define FARANDOLE_INLINE __host__ __device__ __forceinline__
#else
#define FARANDOLE_INLINE __attribute__((always_inline)) inline
#endif
