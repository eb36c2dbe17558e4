# The page is a file of its own; the program carries its text.
set(page ${CMAKE_CURRENT_SOURCE_DIR}/src/report/page.html)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page})
file(READ ${page} page_html)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/report_page.inc CONTENT "R\"page(@page_html@)page\"\n" @ONLY)
