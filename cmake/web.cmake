# The page that calculates in the browser (docs/web.md): the same rooms, compiled by Emscripten, and one static folder.
# tools/web configures this.
add_executable(dsplan_web web/answer.cpp web/no_machine.cpp)
target_link_libraries(dsplan_web PRIVATE dsplan_cli)
dsplan_precompile(dsplan_web)
set(dsplan_folder ${CMAKE_BINARY_DIR}/page)
file(GLOB_RECURSE dsplan_data CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/models/* ${CMAKE_SOURCE_DIR}/configs/*)
set_target_properties(dsplan_web PROPERTIES OUTPUT_NAME dsplan LINK_DEPENDS "${dsplan_data}"
                      RUNTIME_OUTPUT_DIRECTORY ${dsplan_folder})
# The data lies where DSPLAN_DATA says (web/answer.cpp).
target_link_options(dsplan_web PRIVATE
  --no-entry -sMODULARIZE=1 -sEXPORT_NAME=makeDsplan -sENVIRONMENT=web,worker,node
  -sEXPORTED_RUNTIME_METHODS=ccall,FS -sFORCE_FILESYSTEM=1
  -sALLOW_MEMORY_GROWTH=1 -sINITIAL_MEMORY=67108864 -sMAXIMUM_MEMORY=2147483648 -sTOTAL_STACK=4194304
  "SHELL:--preload-file ${CMAKE_SOURCE_DIR}/models@/data/models"
  "SHELL:--preload-file ${CMAKE_SOURCE_DIR}/configs@/data/configs")
# Its style follows that of the program's own page.
dsplan_text(dsplan_web_style ${CMAKE_SOURCE_DIR}/web/style.css)
file(GENERATE OUTPUT ${dsplan_folder}/style.css CONTENT "${dsplan_page_style}${dsplan_web_style}")
foreach(file index.html page.js worker.js)
  configure_file(${CMAKE_SOURCE_DIR}/web/${file} ${dsplan_folder}/${file} COPYONLY)
endforeach()
