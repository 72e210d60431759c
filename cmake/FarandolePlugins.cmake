# SPDX-License-Identifier: Apache-2.0
# FARANDOLE_CUDA and FARANDOLE_MPI: AUTO builds a plug-in where its library is found, ON demands it.

function(farandole_plugin option what)
  if(${option} STREQUAL "AUTO")
    message(STATUS "Farandole: the ${what} plug-in does not exist yet; building without it")
  elseif(${option})
    message(FATAL_ERROR
      "${option}=${${option}}, but this version of Farandole has no ${what} plug-in.\n"
      "why: it comes in a later version; this one communicates in shared memory.\n"
      "fix: leave ${option} at AUTO, or pass -D${option}=OFF.")
  endif()
endfunction()

farandole_plugin(FARANDOLE_CUDA NCCL)
farandole_plugin(FARANDOLE_MPI MPI)
