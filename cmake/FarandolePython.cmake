# SPDX-License-Identifier: Apache-2.0
# The active Python: the one that pip runs in, else the first python3 on PATH.
if(NOT FARANDOLE_TORCH)
  message(FATAL_ERROR "FARANDOLE_PYTHON is ON and FARANDOLE_TORCH is OFF.\n"
                      "why: the Python module works on torch tensors.\n"
                      "fix: pass -DFARANDOLE_PYTHON=OFF, or -DFARANDOLE_TORCH=ON.")
endif()
if(NOT Python_EXECUTABLE)
  find_program(Python_EXECUTABLE NAMES python3 python NO_CACHE)
endif()
find_package(Python 3.10 COMPONENTS Interpreter Development.Module)
if(NOT Python_FOUND)
  message(FATAL_ERROR
    "No Python >= 3.10 with its headers was found (tried ${Python_EXECUTABLE}).\n"
    "why: FARANDOLE_PYTHON is ON, and the module is compiled for the active Python.\n"
    "fix: activate one (Debian: apt-get install python3-dev), pass -DPython_EXECUTABLE=<path>, "
    "or pass -DFARANDOLE_PYTHON=OFF.")
endif()
