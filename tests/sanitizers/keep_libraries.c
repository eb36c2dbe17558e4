// Preloaded into a program, libraries stay until it ends: leaks found at its end keep the names that lsan.supp knows.
int dlclose(void* library) { return library == 0; }
