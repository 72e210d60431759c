# SPDX-License-Identifier: Apache-2.0
# Finds LibTorch: in the folder FARANDOLE_TORCH_DIR when that is given, else in the torch package of
# the active Python. torch's own find_package(Torch) is not used, as it demands a CUDA toolkit
# wherever torch was built with CUDA. Used by Farandole's build and, installed, by
# farandoleConfig.cmake.
#
# Gives farandole_torch_dir, farandole_torch_version, farandole_torch_cxx_standard, and the targets
# farandole::torch (CPU and core libraries, headers) and farandole::torch_python (Python modules).

set(farandole_torch_minimum 2.11.0)

function(farandole_torch_error what why)
  set(without "")
  if(PROJECT_NAME STREQUAL "farandole")
    set(without " With -DFARANDOLE_TORCH=OFF the comm layer is built alone.")
  endif()
  message(FATAL_ERROR "${what}\nwhy: ${why}\n"
    "fix: install torch >= ${farandole_torch_minimum} into the Python that is active (pip install "
    "torch), or pass -DFARANDOLE_TORCH_DIR=<folder with torch's include/ and lib/>.${without}")
endfunction()

# Sets `result` to torch's folder in the active Python, or to nothing. Torch is looked up, not
# imported: that would take seconds. Inside pip's isolated build PYTHONPATH hides the environment's
# own packages, which the second try, with -E, sees.
function(farandole_torch_dir_of_python result)
  if(Python_EXECUTABLE)
    set(python ${Python_EXECUTABLE})
  else()
    find_program(python NAMES python3 python NO_CACHE)
  endif()
  string(CONCAT script "from importlib.util import find_spec; torch = find_spec('torch'); "
                       "print(torch.submodule_search_locations[0] if torch else '')")
  set(found "")
  foreach(option IN ITEMS "-B" "-E")
    if(python AND NOT found)
      execute_process(COMMAND ${python} ${option} -c "${script}"
        WORKING_DIRECTORY ${CMAKE_CURRENT_FUNCTION_LIST_DIR}
        OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endif()
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
  set(farandole_python "${python}" PARENT_SCOPE)
endfunction()

# Sets `result` to the first match of `regex`'s group in the file, or to nothing.
function(farandole_match_in_file file regex result)
  set(text "")
  if(EXISTS ${file})
    file(READ ${file} text)
  endif()
  if(text MATCHES "${regex}")
    set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  else()
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

function(farandole_torch_library name)
  if(NOT TARGET farandole::${name})
    add_library(farandole::${name} SHARED IMPORTED)
    set_target_properties(farandole::${name} PROPERTIES
      IMPORTED_LOCATION ${farandole_torch_dir}/lib/lib${name}.so)
  endif()
endfunction()

set(farandole_torch_dir "${FARANDOLE_TORCH_DIR}")
if(NOT farandole_torch_dir)
  farandole_torch_dir_of_python(farandole_torch_dir)
  if(NOT farandole_torch_dir)
    farandole_torch_error("LibTorch was not found."
      "the active Python (${farandole_python}) has no torch, and FARANDOLE_TORCH_DIR is not set.")
  endif()
endif()
if(NOT EXISTS ${farandole_torch_dir}/lib/libtorch_cpu.so)
  farandole_torch_error("${farandole_torch_dir} does not hold LibTorch."
                        "it has no lib/libtorch_cpu.so.")
endif()

farandole_match_in_file(${farandole_torch_dir}/include/torch/headeronly/version.h
  "define TORCH_VERSION [^0-9]*([0-9]+\\.[0-9]+\\.[0-9]+)" farandole_torch_version)
if(NOT farandole_torch_version OR farandole_torch_version VERSION_LESS farandole_torch_minimum)
  farandole_torch_error("The torch in ${farandole_torch_dir} cannot be used."
    "its version, '${farandole_torch_version}', is unknown or below ${farandole_torch_minimum}.")
endif()
# torch's headers say themselves which C++ they need.
farandole_match_in_file(${farandole_torch_dir}/include/torch/csrc/api/include/torch/all.h
  "__cplusplus < 20([0-9][0-9])" farandole_torch_cxx_standard)
if(NOT farandole_torch_cxx_standard)
  set(farandole_torch_cxx_standard 17)
endif()

farandole_torch_library(c10)
farandole_torch_library(torch_cpu)
farandole_torch_library(torch_python)
if(NOT TARGET farandole::torch)
  add_library(farandole::torch INTERFACE IMPORTED)
  target_include_directories(farandole::torch SYSTEM INTERFACE
    ${farandole_torch_dir}/include ${farandole_torch_dir}/include/torch/csrc/api/include)
  # As LibTorch's own CMake package defines them.
  target_compile_definitions(farandole::torch INTERFACE
    USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
  target_compile_features(farandole::torch INTERFACE cxx_std_${farandole_torch_cxx_standard})
  target_link_libraries(farandole::torch INTERFACE farandole::torch_cpu farandole::c10)
  target_link_libraries(farandole::torch_python INTERFACE farandole::torch)
endif()
message(STATUS "Farandole: LibTorch ${farandole_torch_version}, "
               "C++${farandole_torch_cxx_standard}, in ${farandole_torch_dir}")
