# SPDX-License-Identifier: Apache-2.0
# Compiles public headers alone, so that none leans on what another happened to include: those of
# comm as C++17 and as C++20, and the umbrella header, which includes them all, as C++20; where
# FARANDOLE_HEADERS_ALONE is ON, as in `make test-all`, those above comm too, 4 s each with torch's
# own headers precompiled, in the standard that torch asks for.

# Adds a library of sources that include one header each.
function(farandole_headers_alone name library standard)
  set(sources "")
  foreach(header IN LISTS ARGN)
    string(MAKE_C_IDENTIFIER ${header} source)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/headers_alone/${source}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n")
    list(APPEND sources ${source})
  endforeach()
  if(sources)
    add_library(${name} OBJECT ${sources})
    set_target_properties(${name} PROPERTIES CXX_STANDARD ${standard})
    target_link_libraries(${name} PRIVATE ${library})
    farandole_own_code(${name})
    if(name STREQUAL "headers_alone_torch")
      farandole_share_precompiled_header(${name})
    endif()
  endif()
endfunction()

file(GLOB_RECURSE headers CONFIGURE_DEPENDS
  RELATIVE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/include/*.h)
set(umbrella farandole/farandole.h)
list(REMOVE_ITEM headers ${umbrella})
set(torch_headers ${headers})
list(FILTER torch_headers INCLUDE REGEX "^farandole/(amp|checkpoint|data|ddp|debugger|optim|process_group|profile)/")
list(REMOVE_ITEM headers ${torch_headers})

farandole_headers_alone(headers_alone_17 farandole_comm 17 ${headers})
farandole_headers_alone(headers_alone_20 farandole_comm 20 ${headers})
if(FARANDOLE_TORCH)
  farandole_headers_alone(headers_alone_torch_20 farandole 20 ${umbrella})
endif()
if(FARANDOLE_TORCH AND FARANDOLE_HEADERS_ALONE)
  farandole_headers_alone(headers_alone_torch farandole ${CMAKE_CXX_STANDARD} ${torch_headers})
endif()
