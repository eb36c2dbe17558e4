// Nothing of its own: the headers that all tests share are read once for this file, see CMakeLists.txt.
