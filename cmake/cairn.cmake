# The four kinds of targets this project has. Each folder's CMakeLists.txt lists its files by name.

# cairn_library(NAME SOURCES a.cc ... DEPS other_library ...): a static library `cairn_NAME`.
function(cairn_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(cairn_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(cairn_${name} PUBLIC ${ARG_DEPS})
endfunction()

# cairn_isa_source(FILE avx2|avx512): compiles FILE, and no other, with that instruction set.
function(cairn_isa_source file level)
  if(level STREQUAL "avx2")
    set(flags -mavx2 -mfma -mf16c)
  elseif(level STREQUAL "avx512")
    set(flags -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mprefer-vector-width=512)
    # g++ 12 reports its own avx512fintrin.h: the "undefined" intrinsics initialise a variable with itself.
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      list(APPEND flags -Wno-uninitialized -Wno-maybe-uninitialized)
    endif()
  else()
    message(FATAL_ERROR "unknown instruction set ${level}")
  endif()
  # Sanitizers multiply the checks in code this unrolled; -O1 keeps a file at seconds instead of minutes.
  if(CAIRN_SANITIZE)
    list(APPEND flags -O1)
  endif()
  set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${flags}")
endfunction()

# cairn_test(NAME SOURCES a_test.cc ... DEPS ...): a GoogleTest binary, registered with ctest as one entry.
# Nothing without BUILD_TESTING.
function(cairn_test name)
  if(NOT BUILD_TESTING)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()

# cairn_bench(NAME SOURCES a_bench.cc ... DEPS ...): a Google Benchmark binary. Nothing without BUILD_TESTING.
function(cairn_bench name)
  if(NOT BUILD_TESTING)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} benchmark::benchmark)
endfunction()
