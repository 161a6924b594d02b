// As goroutines.go: a goroutine calls C, which maps memory, and which calls Go, which has the runtime map memory.
package main

/*
#include <sys/mman.h>

extern void goBack(void);

static void *volatile mapped;

static __attribute__((noinline)) void c_map(void)
{
	mapped = mmap(0, 77 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static __attribute__((noinline)) void c_back(void)
{
	goBack();
	mapped = 0;
}
*/
import "C"

var kept []byte

//export goBack
func goBack() { mapBack() }

//go:noinline
func mapBack() { kept = make([]byte, 170<<20) }

//go:noinline
func intoC() {
	C.c_map()
	C.c_back()
}

//go:noinline
func mapHere() { kept = make([]byte, 190<<20) }

func main() {
	done := make(chan bool)
	go func() {
		intoC()
		mapHere()
		done <- true
	}()
	<-done
}
