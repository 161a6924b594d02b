/* dlopens the library of argument 1, captures below it, and closes it. */
#include "unwind_capture.h"
#include <dlfcn.h>

static volatile size_t sink;

void plugin_callback(size_t n) {
	void *p = mmap(NULL, CAP_LEN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sink += (size_t)p + n;
}

__attribute__((noinline)) void use_plugin(const char *path) {
	void *lib = dlopen(path, RTLD_LAZY);
	if (!lib) _exit(4);
	void (*entry)(size_t) = (void (*)(size_t))dlsym(lib, "plugin_entry");
	entry(3);
	sink++;
	cap_wait();
	dlclose(lib);
}

int main(int argc, char **argv) {
	cap_install();
	if (argc > 1) use_plugin(argv[1]);
	cap_wait();
	return 0;
}
