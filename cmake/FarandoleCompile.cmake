# SPDX-License-Identifier: Apache-2.0
# How Farandole's own code is compiled: warnings, visibility, sanitizers, ccache.

set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
if(NOT CMAKE_CXX_STANDARD)
  set(CMAKE_CXX_STANDARD 17)  # FarandoleTorch.cmake raises it where torch's headers ask for more
endif()

find_program(FARANDOLE_CCACHE ccache)
mark_as_advanced(FARANDOLE_CCACHE)
if(FARANDOLE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness that ccache needs to cache files compiled with a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${FARANDOLE_CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  endif()
endif()

if(FARANDOLE_SANITIZER MATCHES "^(address|thread)$")
  # Undefined behaviour is looked for beside addresses: one build and one run less.
  string(REPLACE "address" "address,undefined" sanitizers ${FARANDOLE_SANITIZER})
  add_compile_options(-fsanitize=${sanitizers} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -g1)  # -g1: lines and names, for reports
  add_link_options(-fsanitize=${sanitizers})
  # Sources leave out what sanitizers cannot run: target_clones resolvers start before the runtime.
  string(TOUPPER ${FARANDOLE_SANITIZER} sanitizer)
  add_compile_definitions(FARANDOLE_SANITIZED=1 FARANDOLE_SANITIZED_${sanitizer}=1)
elseif(NOT FARANDOLE_SANITIZER STREQUAL "none")
  message(FATAL_ERROR "FARANDOLE_SANITIZER is '${FARANDOLE_SANITIZER}'.\n"
                      "why: only none, address and thread are known.\n"
                      "fix: pass -DFARANDOLE_SANITIZER=address, for example.")
endif()

# torch, Python's other modules and Farandole share one C++ library: with a copy of its own in each of
# ours, streams, locales and exceptions of both are mixed, and the first use ends in a SIGSEGV. A
# compiler takes its libstdc++.a in silence where the link libstdc++.so leads nowhere.
function(farandole_check_standard_library)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR NOT CMAKE_READELF OR FARANDOLE_SHARED_LIBSTDCXX)
    return()
  endif()
  set(folder ${CMAKE_BINARY_DIR}/standard_library)
  separate_arguments(flags UNIX_COMMAND "${CMAKE_SHARED_LINKER_FLAGS}")
  file(WRITE ${folder}/probe.cpp "#include <iostream>\nvoid probe() { std::cout << 1; }\n")
  execute_process(
    COMMAND ${CMAKE_CXX_COMPILER} -shared -fPIC ${folder}/probe.cpp -o ${folder}/probe.so
            ${flags}
    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  execute_process(COMMAND ${CMAKE_READELF} -d ${folder}/probe.so OUTPUT_VARIABLE needed ERROR_QUIET)
  if(failed OR needed MATCHES "libstdc\\+\\+\\.so")
    set(FARANDOLE_SHARED_LIBSTDCXX TRUE CACHE INTERNAL "The C++ library is linked as a shared one")
    return()
  endif()
  message(FATAL_ERROR
    "${CMAKE_CXX_COMPILER} links its C++ library statically.\n"
    "why: it finds no libstdc++.so (does the link lead nowhere?), or it is told to; Farandole and "
    "torch must share one, or programs end with SIGSEGV.\n"
    "fix: use another compiler (CXX=/usr/bin/g++), or name a folder that has libstdc++.so "
    "(LDFLAGS=-L...), and leave -static-libstdc++ out.")
endfunction()
farandole_check_standard_library()

# Warnings for one of our own targets; headers of others come in as SYSTEM and stay quiet.
function(farandole_own_code target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Wshadow)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)  # false on std::string: GCC bug 105651
  endif()
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # In C++, Clang's -Wconversion includes -Wsign-conversion, but GCC's does not. Clang ignores the
    # pragmas that only GCC knows. Some functions override one of torch with a newer torch only.
    target_compile_options(${target} PRIVATE
      -Wno-sign-conversion -Wno-unknown-pragmas -Wno-inconsistent-missing-override)
  endif()
  if(FARANDOLE_WERROR)
    # Which of its names torch deprecates changes from version to version; that stays a warning.
    target_compile_options(${target} PRIVATE -Werror -Wno-error=deprecated-declarations)
  endif()
endfunction()

# Gives a target the precompiled header of the library farandole: torch's headers, parsed once
# (20 s, 400 MB) instead of in every source. All that share it are compiled with the library's flags.
function(farandole_share_precompiled_header target)
  target_compile_options(${target} PRIVATE -fPIC -ffp-contract=off)
  target_precompile_headers(${target} REUSE_FROM farandole)
endfunction()

# Compiles the sources of each folder of a target up to FARANDOLE_UNITY_SIZE at a time. Each
# compilation begins by making 10,000 functions of templates that torch's headers ask for, which takes
# 4 s of a source's 6 s, and sources of one folder need the same other templates. Sources with flags of
# their own are compiled alone.
function(farandole_compile_together target)
  if(FARANDOLE_UNITY_SIZE LESS 2)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    file(RELATIVE_PATH folder ${CMAKE_CURRENT_SOURCE_DIR} ${source})
    string(REGEX REPLACE "/.*|[^/]+[.]cpp$" "" folder ${folder})
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    if(NOT options)
      if(NOT DEFINED seen_${folder})
        set(seen_${folder} 0)
      endif()
      math(EXPR group "${seen_${folder}} / ${FARANDOLE_UNITY_SIZE}")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP "${folder}_${group}")
      math(EXPR seen_${folder} "${seen_${folder}} + 1")
    endif()
  endforeach()
endfunction()
